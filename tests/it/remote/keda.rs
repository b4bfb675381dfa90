//! KEDA's external scaler: the load of a pool of attached workers, as an autoscaler reads it.

use tonic::{Code, Status, Streaming, transport::Channel};
use waterwheel::proto::externalscaler::{
    GetMetricsRequest, IsActiveResponse, ScaledObjectRef, external_scaler_client::ExternalScalerClient,
};

use super::{CONFIG, Worker, serve};
use crate::{
    refusal::Refusal,
    service::{Address, Caller, Service, job, load_config, queued},
    support::Cluster,
};

/// KEDA, for one trigger.
#[derive(Clone)]
pub(super) struct Keda {
    scaler: ExternalScalerClient<Channel>,
    object: ScaledObjectRef,
}

impl Keda {
    pub(super) async fn of(ops: Address, metadata: &[(&str, &str)]) -> Self {
        let scaler_metadata = metadata.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect();
        let object = ScaledObjectRef { name: "far".into(), namespace: "gpu".into(), scaler_metadata };
        Self { scaler: ExternalScalerClient::new(ops.channel().await), object }
    }

    pub(super) async fn is_active(&self) -> bool {
        self.scaler.clone().is_active(self.object.clone()).await.unwrap().into_inner().result
    }

    pub(super) async fn watch(&self) -> Streaming<IsActiveResponse> {
        self.scaler.clone().stream_is_active(self.object.clone()).await.unwrap().into_inner()
    }

    async fn spec(&self) -> Result<(String, i64, f64), Status> {
        let mut specs = self.scaler.clone().get_metric_spec(self.object.clone()).await?.into_inner().metric_specs;
        let spec = specs.pop().expect("a metric");
        Ok((spec.metric_name, spec.target_size, spec.target_size_float))
    }

    /// The metric, by the name that Kubernetes makes of it.
    pub(super) async fn jobs(&self) -> Result<i64, Status> {
        let (scaled_object_ref, metric_name) = (Some(self.object.clone()), "s0-waterwheel-jobs".to_owned());
        let request = GetMetricsRequest { scaled_object_ref, metric_name };
        let values = self.scaler.clone().get_metrics(request).await?.into_inner().metric_values;
        let [value] = &values[..] else { panic!("one metric: {values:?}") };
        assert_eq!(value.metric_value as f64, value.metric_value_float);
        Ok(value.metric_value)
    }

    /// Polls until the metric is this.
    pub(super) async fn reach(&self, jobs: i64) {
        let begin = tokio::time::Instant::now();
        while !matches!(self.jobs().await, Ok(found) if found == jobs) {
            assert!(begin.elapsed() < crate::process::PATIENCE, "{:?}, but not {jobs}", self.jobs().await);
            tokio::task::yield_now().await;
        }
    }
}

fn held() -> waterwheel::proto::Job {
    waterwheel::proto::Job { when_full: 2, ..job("far", "") }
}

#[tokio::test]
async fn jobs_that_want_workers_are_the_metric_and_a_refused_one_asks_for_the_first() {
    let service = serve("");
    let caller = Caller::of(service.public).await;
    let keda = Keda::of(service.ops, &[("pool", "far"), ("jobsPerWorker", "4"), ("scalerAddress", "a:1")]).await;
    assert_eq!(keda.spec().await.unwrap(), ("waterwheel-jobs".to_owned(), 4, 4.0));
    assert!(!keda.is_active().await);
    let mut watch = keda.watch().await;
    assert!(!watch.message().await.unwrap().unwrap().result);
    caller.leave(job("far", "")).await.unwrap().unwrap_err();
    assert_eq!((keda.is_active().await, keda.jobs().await.unwrap()), (true, 1));
    assert!(watch.message().await.unwrap().unwrap().result, "only changes are sent");

    let calls = [caller.leave(held()), caller.leave(held()), caller.leave(held())];
    caller.until(|pool| queued(pool) == 3).await;
    assert_eq!(keda.jobs().await.unwrap(), 3);
    let mut worker = Worker::attach(&service, 2).await;
    caller.until(|pool| pool.in_flight == 2).await;
    assert_eq!(keda.jobs().await.unwrap(), 3, "running jobs count");
    for _ in 0..3 {
        let id = worker.run().await.id;
        worker.done(&id, "").await;
    }
    for call in calls {
        call.await.unwrap().unwrap();
    }
    assert_eq!((keda.is_active().await, keda.jobs().await.unwrap()), (false, 0));
    assert!(!watch.message().await.unwrap().unwrap().result);
}

#[tokio::test]
async fn bad_metadata_of_a_trigger_is_refused_with_what_to_write() {
    let service = serve("");
    for (metadata, field, help) in [
        (&[][..], "scalerMetadata.pool", "to one of far"),
        (&[("pool", "near")], "scalerMetadata.pool", "to one of far"),
        (&[("pool", "far"), ("jobsPerWorker", "0")], "scalerMetadata.jobsPerWorker", "a whole number from 1"),
        (&[("pool", "far"), ("jobsPerWorker", "many")], "scalerMetadata.jobsPerWorker", "a whole number from 1"),
    ] {
        let keda = Keda::of(service.ops, metadata).await;
        for refusal in [keda.spec().await.unwrap_err(), keda.jobs().await.unwrap_err()] {
            let refusal = Refusal::of_call(refusal, true);
            assert_eq!(refusal.code(), Code::InvalidArgument);
            let details = refusal.details();
            let violation = &details.bad_request().unwrap().field_violations[0];
            assert!(violation.field == field && violation.description.contains(help), "{violation:?}");
        }
    }
    let of_callers = Keda::of(service.public, &[("pool", "far")]).await;
    assert_eq!(of_callers.jobs().await.unwrap_err().code(), Code::Unimplemented);
}

#[tokio::test]
async fn servers_of_one_store_answer_the_sum_of_all() {
    let Some(cluster) = Cluster::start().await else { return };
    let config = || {
        let mut config = load_config(&format!("{CONFIG}\n    store.url = \"{}\"", cluster.url("postgres")));
        config.server.listen = vec!["127.0.0.1:0".parse().unwrap()];
        config
    };
    let services =
        [Service::start_with(config(), Vec::new()).unwrap(), Service::start_with(config(), Vec::new()).unwrap()];
    let mut kedas = Vec::new();
    for (service, held_jobs) in services.iter().zip([2, 3]) {
        let caller = Caller::of(service.public).await;
        (0..held_jobs).for_each(|_| drop(caller.leave(held())));
        caller.until(|pool| queued(pool) == held_jobs).await;
        kedas.push(Keda::of(service.ops, &[("pool", "far")]).await);
    }
    for keda in &kedas {
        keda.reach(5).await;
    }
    // A detached job that waits in the store counts once.
    let created = waterwheel::proto::CreateJobRequest { job: Some(job("far", "")), ..Default::default() };
    let mut jobs = waterwheel::proto::job_service_client::JobServiceClient::new(services[0].public.channel().await);
    jobs.create_job(created).await.unwrap();
    for keda in &kedas {
        keda.reach(6).await;
    }
    cluster.halt().await;
    let away = async |keda: &Keda| keda.jobs().await.is_err_and(|status| status.code() == Code::Unavailable);
    for keda in &kedas {
        while !away(keda).await {
            tokio::task::yield_now().await;
        }
        assert!(keda.is_active().await, "its own jobs need no store");
    }
}
