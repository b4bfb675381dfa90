//! Tests of quotas.

use tokio::time::advance;

use super::*;

fn quotas(each: TenantQuota, tenants: usize) -> Quotas {
    let named = vec![("big".to_owned(), TenantQuota { in_flight: Some(3), ..TenantQuota::default() })];
    Quotas::new(&QuotaConfig { each, tenants, named }).expect("bound")
}

fn rate(rate: u32, burst: u32) -> TenantQuota {
    TenantQuota { rate: NonZeroU32::new(rate), burst: NonZeroU32::new(burst), in_flight: None }
}

fn wait(taken: Result<Option<Hold>, OverQuota>) -> Duration {
    match taken {
        Err(OverQuota::Rate { retry_after, .. }) => retry_after,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn whoever_comes_back_when_told_gets_in() {
    let quotas = quotas(rate(10, 2), 100);
    assert!(quotas.take("a").is_ok() && quotas.take("a").is_ok());
    let told = wait(quotas.take("a"));
    assert!((Duration::from_millis(99)..=Duration::from_millis(100)).contains(&told), "{told:?}");
    advance(told - Duration::from_millis(1)).await;
    assert!(quotas.take("a").is_err(), "a little early");
    advance(Duration::from_millis(1)).await;
    assert!(quotas.take("a").is_ok());
    assert!(quotas.take("b").is_ok(), "another tenant has its own");
    assert_eq!(quotas.refused(), 2);
}

#[tokio::test(start_paused = true)]
async fn callers_that_are_refused_together_come_back_one_by_one() {
    let quotas = quotas(rate(10, 1), 100);
    assert!(quotas.take("a").is_ok());
    let mut told: Vec<_> = (0..5).map(|_| wait(quotas.take("a"))).collect();
    told.dedup();
    assert_eq!(told.len(), 5, "{told:?}");
    let mut passed = Duration::ZERO;
    for wait in told {
        advance(wait - passed + Duration::from_nanos(1)).await;
        passed = wait;
        assert!(quotas.take("a").is_ok(), "after {wait:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_flood_moves_no_hint_over_a_minute_and_books_no_turn_beyond() {
    let quotas = quotas(rate(10, 1), 100);
    assert!(quotas.take("a").is_ok());
    for refused in 0..20_000 {
        let told = wait(quotas.take("a"));
        assert!(told <= Duration::from_secs(60), "after {refused} refusals {told:?}");
    }
    // Nothing was booked beyond: once that minute is over, the next one waits for the next room.
    advance(Duration::from_secs(61)).await;
    assert!(quotas.take("a").is_ok());
    let told = wait(quotas.take("a"));
    assert!(told <= Duration::from_millis(100), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn room_in_flight_is_given_back() {
    let quotas = quotas(TenantQuota { in_flight: Some(2), ..TenantQuota::default() }, 100);
    let first = quotas.take("a").expect("room");
    let second = quotas.take("a").expect("room");
    assert_eq!(quotas.take("a").unwrap_err(), OverQuota::InFlight { limit: 2 });
    drop(first);
    let third = quotas.take("a").expect("room again");
    assert!(quotas.take("a").is_err());
    drop((second, third));
    let big: Vec<_> = (0..3).map(|_| quotas.take("big").expect("room of its own")).collect();
    assert_eq!(quotas.take("big").unwrap_err(), OverQuota::InFlight { limit: 3 });
    drop(big);
}

#[tokio::test(start_paused = true)]
async fn what_is_refused_at_the_rate_holds_no_room() {
    let quotas = quotas(TenantQuota { in_flight: Some(2), ..rate(1, 1) }, 100);
    let held = quotas.take("a").expect("room");
    assert!((0..5).all(|_| matches!(quotas.take("a"), Err(OverQuota::Rate { .. }))));
    drop(held);
}

#[tokio::test(start_paused = true)]
async fn the_table_is_bounded_and_forgets_those_at_rest() {
    let quotas = quotas(rate(1, 1), 160);
    for number in 0..10_000 {
        let _ = quotas.take(&format!("tenant-{number}"));
    }
    assert!(quotas.tenants() <= 160);
    assert!(matches!(quotas.take("one more"), Err(OverQuota::Rate { .. })), "the others share one quota");
    let known = quotas.take("tenant-0");
    assert!(known.is_err(), "a tenant that has used its room is not forgotten");
    advance(Duration::from_secs(2) * 10_000).await;
    assert!(quotas.take("one more").is_ok());
    assert!(quotas.tenants() <= 160);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_counted_where_nobody_is_bound() {
    assert!(Quotas::new(&QuotaConfig::default()).is_none());
    let quotas = quotas(TenantQuota::default(), 100);
    assert!(quotas.take("a").unwrap().is_none());
    assert_eq!(quotas.tenants(), 0);
}
