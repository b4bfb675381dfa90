-- Times are milliseconds since 1970 in UTC. `state` and `rank` are positions, as in `JobState` and `Criticality`.
create function waterwheel_now() returns bigint language sql stable
    as $$ select (extract(epoch from clock_timestamp()) * 1000)::bigint $$;

create sequence numbers;

create table jobs (
    row bigint primary key,
    id text not null unique,
    state bigint not null,
    place bigint not null,
    pool text not null,
    kind text not null,
    tenant text not null,
    ordering_key text not null,
    slot_key text,
    rank bigint not null,
    holds_key boolean not null,
    created_at bigint not null,
    due_at bigint not null,
    expire_at bigint,
    started_at bigint,
    ended_at bigint,
    purge_at bigint,
    session bigint,
    starts bigint not null,
    failures bigint not null,
    crashes bigint not null,
    losses bigint not null,
    cancel_requested boolean not null,
    digest bytea not null,
    member_of bigint,
    payload_bytes bigint not null,
    output_bytes bigint not null,
    output_type text not null,
    spec json not null,
    attempts text,
    outcome text not null,
    pattern text not null
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

create index jobs_ready on jobs (kind, rank, place, row) where state = 1;
create index jobs_places on jobs (kind, rank, tenant, place) where state = 1;
create index jobs_tenant on jobs (tenant, row);
create index jobs_due on jobs (due_at) where state = 0;
create index jobs_blocked on jobs (tenant, ordering_key, place) where state = 2;
create index jobs_running on jobs (session, kind) where state = 3;
create index jobs_dead on jobs (kind) where state = 5;
-- Jobs that ended without a result, which are few, in the order of rows.
create index jobs_unsuccessful on jobs (row) where state > 4;
create index jobs_expire on jobs (expire_at) where expire_at is not null and state < 3;
create index jobs_purge on jobs (purge_at) where purge_at is not null;
-- Jobs that count for the limit of their limit key, and those that wait for one.
create index jobs_slots on jobs (kind, slot_key) where slot_key is not null and state in (1, 3);
create index jobs_waiting on jobs (kind, slot_key, place) where slot_key is not null and state = 2;
-- In the order of rows.
create index jobs_members on jobs (member_of, row) where member_of is not null;
-- At most one job of a tenant holds a key.
create unique index jobs_held on jobs (tenant, ordering_key) where holds_key;

-- Beside the jobs, so that a change of state does not write a payload again.
create table payloads (row bigint primary key, bytes bytea not null);
create table outputs (row bigint primary key, bytes bytea not null);

-- Groups, each with the row of the job that waits for its members, and the numbers of members by state. `is_due`: the job
-- may start, and has not.
create table groups (
    row bigint primary key,
    must_succeed boolean not null,
    is_closed boolean not null default false,
    is_due boolean not null default false,
    active bigint not null default 0,
    succeeded bigint not null default 0,
    failed bigint not null default 0,
    cancelled bigint not null default 0,
    expired bigint not null default 0
) with (fillfactor = 50);
create index groups_due on groups (row) where is_due;

-- `demand` is a JSON object: jobs that run or wait in the pools of the server.
create table sessions (
    session bigint primary key,
    lease_ms bigint not null,
    ends_at bigint not null,
    demand text not null default '{}'
);
create table schedules (
    name text primary key,
    tick bigint not null,
    pattern text not null,
    run text not null
);

-- Starts of kinds with a rate: when their buckets of tokens are full, in nanoseconds since 1970.
create table buckets (kind text primary key, full_at bigint not null) with (fillfactor = 50);

-- The same of limit keys, as far as they are not full. `look_at`: when jobs of the key may become ready.
create table key_buckets (
    kind text not null,
    slot_key text not null,
    full_at bigint not null,
    look_at bigint not null,
    primary key (kind, slot_key)
) with (fillfactor = 50);
create index key_buckets_look on key_buckets (look_at, kind, slot_key);

-- Pools that operators hold back, on all servers.
create table suspensions (
    pool text primary key,
    is_shut boolean not null,
    since bigint not null,
    principal text not null,
    reason text not null
);

-- Hides numbers in page tokens.
create table secrets (bytes bytea not null);
insert into secrets values (uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()));
