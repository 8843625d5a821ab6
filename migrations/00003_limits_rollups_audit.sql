-- +goose Up

-- A limit of key_id '*' counts each key apart, so the column cannot refer to
-- keys any more; whoever writes it checks.
alter table weir.limits drop constraint limits_key_id_fkey;
alter table weir.limits
    add column class text not null default '',
    add column created_at timestamptz not null default now();

-- A budget in one period, and what gateways hold of it. It says for itself
-- which ledger rows it counts, so that rows that come late find it even after
-- its limit has changed.
create table weir.budgets (
    tenant_id   uuid not null,
    limit_id    text not null,
    key_id      text not null, -- '': all keys together
    window_     text not null check (window_ in ('day', 'month')),
    period      integer not null, -- UTC days since 1970-01-01, or months
    max         bigint not null check (max >= 0),
    closed      bigint not null default 0, -- used by leases that are final
    kind        text not null,
    match_key   text not null, -- '' matches all, as do the next three
    match_model text not null,
    match_tier  text not null,
    match_class text not null,
    primary key (tenant_id, limit_id, key_id, window_, period)
);

create table weir.budget_leases (
    tenant_id  uuid not null,
    limit_id   text not null,
    key_id     text not null,
    window_    text not null,
    period     integer not null,
    node       text not null,   -- stays the same when a gateway restarts
    epoch      text not null,   -- of the process
    generation bigint not null, -- leases that were closed under it
    granted    bigint not null,
    returned   bigint not null,
    used       bigint not null,
    reserved   bigint not null,
    expires_at timestamptz not null,
    final      boolean not null, -- closed; the row fences its holder
    primary key (tenant_id, limit_id, key_id, window_, period, epoch, generation),
    foreign key (tenant_id, limit_id, key_id, window_, period) references weir.budgets on delete cascade
);
create index on weir.budget_leases (epoch) where final;
create index on weir.budget_leases (node) where not final;

-- Gateways that are alive, and their shares of rates and slots. A crash of the
-- database may lose both: gateways write them again within a second.
create unlogged table weir.gateways (
    epoch   text primary key,
    node    text not null,
    name    text not null,
    seen_at timestamptz not null
);

create unlogged table weir.rate_shares (
    tenant_id uuid not null,
    limit_id  text not null,
    key_id    text not null,
    epoch     text not null,
    demand    bigint not null,
    max       bigint not null,
    burst     bigint not null,
    seen_at   timestamptz not null,
    primary key (tenant_id, limit_id, key_id, epoch)
);

-- The attempt's number within its operation on its tier, from 1; 0 is unknown
-- and counts as the first. A request is counted once by its first attempt.
alter table weir.usage_ledger add column attempt integer not null default 0;

-- Sums over the ledger, kept by the transactions that write it. requests
-- counts operations; an escalated one counts where it was answered.
create table weir.usage_minute (
    at               timestamptz not null, -- start of the minute
    tenant_id        uuid not null,
    key_id           text not null,
    tier             text not null,
    model            text not null,
    class            text not null,
    outcome          text not null,
    requests         bigint not null,
    attempts         bigint not null,
    input_tokens     bigint not null,
    cached_tokens    bigint not null,
    output_tokens    bigint not null,
    reasoning_tokens bigint not null,
    cost_nanousd     bigint not null,
    answered         bigint not null, -- attempts with a first token
    ttft_us          bigint not null, -- their sum
    total_us         bigint not null,
    primary key (tenant_id, at, key_id, tier, model, class, outcome)
);
create index on weir.usage_minute using brin (at);

create table weir.usage_hour (like weir.usage_minute including all);

-- drop_usage_days drops the partitions of days before d and returns how many.
-- +goose StatementBegin
create function weir.drop_usage_days(d date) returns integer language plpgsql as $$
declare
    part text;
    n integer := 0;
begin
    for part in
        select c.relname from pg_inherits i join pg_class c on c.oid = i.inhrelid
        where i.inhparent = 'weir.usage_ledger'::regclass and c.relname < 'usage_' || to_char(d, 'YYYYMMDD')
        order by c.relname
    loop
        execute format('drop table weir.%I', part);
        n := n + 1;
    end loop;
    return n;
end $$;
-- +goose StatementEnd

-- Who changed what. Rows are added, never changed.
create table weir.audit_log (
    id          bigint generated always as identity primary key,
    at          timestamptz not null default now(),
    actor       text not null check (length(actor) between 1 and 128), -- id of an admin token, or 'system'
    role        text not null default '',
    tenant_id   uuid, -- null: of the platform
    action      text not null check (length(action) between 1 and 64), -- e.g. key.rotate
    object_kind text not null default '',
    object_id   text not null default '',
    before      jsonb,
    after       jsonb,
    request_id  text not null default ''
);
create index on weir.audit_log (tenant_id, id desc);

-- +goose StatementBegin
create function weir.refuse_change() returns trigger language plpgsql as $$
begin
    raise exception 'rows of % are never changed', tg_table_name;
end $$;
-- +goose StatementEnd
create trigger refuse_change before update or delete on weir.audit_log
    for each statement execute function weir.refuse_change();

-- +goose Down
drop table weir.audit_log;
drop function weir.refuse_change();
drop function weir.drop_usage_days(date);
drop table weir.usage_hour, weir.usage_minute;
alter table weir.usage_ledger drop column attempt;
drop table weir.rate_shares, weir.gateways, weir.budget_leases, weir.budgets;
alter table weir.limits drop column class, drop column created_at;
