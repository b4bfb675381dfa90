pragma application_id = 2004116322;

-- Times are milliseconds since 1970 in UTC. `state` and `rank` are positions, as in `JobState` and `Criticality`.
create table jobs (
    row integer primary key,
    id text not null unique,
    state integer not null,
    place integer not null,
    pool text not null,
    kind text not null,
    tenant text not null,
    ordering_key text not null,
    slot_key text,
    rank integer not null,
    holds_key integer not null,
    created_at integer not null,
    due_at integer not null,
    expire_at integer,
    started_at integer,
    ended_at integer,
    purge_at integer,
    session integer,
    starts integer not null,
    failures integer not null,
    crashes integer not null,
    losses integer not null,
    cancel_requested integer not null,
    digest blob not null,
    member_of integer,
    payload_bytes integer not null,
    output_bytes integer not null,
    output_type text not null,
    spec text not null,
    attempts text,
    outcome text not null,
    pattern text not null
) strict;

create index jobs_ready on jobs (kind, rank, place, row, due_at) where state = 1;
create index jobs_places on jobs (kind, rank, tenant, place) where state = 1;
-- In the order of rows.
create index jobs_tenant on jobs (tenant);
create index jobs_due on jobs (due_at, kind) where state = 0;
create index jobs_blocked on jobs (tenant, ordering_key, place, kind) where state = 2;
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
create index jobs_members on jobs (member_of) where member_of is not null;
-- At most one job of a tenant holds a key.
create unique index jobs_held on jobs (tenant, ordering_key) where holds_key;

-- Beside the jobs, so that a change of state does not write a payload again.
create table payloads (row integer primary key, bytes blob not null) strict;
create table outputs (row integer primary key, bytes blob not null) strict;

-- Groups, each with the row of the job that waits for its members, and the numbers of members by state. `is_due`: the job
-- may start, and has not.
create table groups (
    row integer primary key,
    must_succeed integer not null,
    is_closed integer not null default 0,
    is_due integer not null default 0,
    active integer not null default 0,
    succeeded integer not null default 0,
    failed integer not null default 0,
    cancelled integer not null default 0,
    expired integer not null default 0
) strict;
create index groups_due on groups (row) where is_due;

-- `demand` is a JSON object: jobs that run or wait in the pools of the server.
create table sessions (
    session integer primary key,
    lease_ms integer not null,
    ends_at integer not null,
    demand text not null default '{}'
) strict;
create table schedules (
    name text primary key,
    tick integer not null,
    pattern text not null,
    run text not null
) strict, without rowid;

-- Starts of kinds with a rate: when their buckets of tokens are full, in nanoseconds since 1970.
create table buckets (kind text primary key, full_at integer not null) strict, without rowid;

-- The same of limit keys, as far as they are not full. `look_at`: when jobs of the key may become ready.
create table key_buckets (
    kind text not null,
    slot_key text not null,
    full_at integer not null,
    look_at integer not null,
    primary key (kind, slot_key)
) strict, without rowid;
create index key_buckets_look on key_buckets (look_at, kind, slot_key);

-- Pools that operators hold back, on all servers.
create table suspensions (
    pool text primary key,
    is_shut integer not null,
    since integer not null,
    principal text not null,
    reason text not null
) strict, without rowid;

-- Sizes of the tenants, and the last number and the size of all.
create table tenants (tenant text primary key, jobs integer not null, bytes integer not null) strict, without rowid;
create table totals (number integer not null, jobs integer not null, bytes integer not null) strict;
insert into totals values (0, 0, 0);

-- Hides numbers in page tokens.
create table secrets (bytes blob not null) strict;
insert into secrets values (randomblob(32));
