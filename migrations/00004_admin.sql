-- +goose Up

-- Who set a limit: a tenant's own admins may change only what they have set.
alter table weir.limits add column set_by text not null default 'platform' check (set_by in ('platform', 'tenant'));

-- Answers to changes that were sent with an Idempotency-Key, for their retries.
-- They may show a secret, so they are sealed with a key that is not in here.
create table weir.admin_replays (
    actor      text not null,
    key        text not null check (length(key) between 1 and 128),
    request    bytea not null check (length(request) = 32), -- SHA-256 of method, path and body
    status     integer not null default 0,
    sealed     bytea,
    expires_at timestamptz not null,
    primary key (actor, key)
);
create index on weir.admin_replays (expires_at);

-- Transactions of admins that are bound to a tenant run as weir_tenant with the
-- tenant in the setting weir.tenant: a query that forgets its tenant then
-- finds nothing instead of everything.
-- +goose StatementBegin
do $$
begin
    if not exists (select from pg_roles where rolname = 'weir_tenant') then
        begin
            create role weir_tenant nologin;
            execute format('grant weir_tenant to %I', current_user);
        exception when duplicate_object or unique_violation then
            null; -- another database of this cluster was faster
        end;
    end if;
    if not pg_has_role(current_user, 'weir_tenant', 'member') then
        execute format('grant weir_tenant to %I', current_user);
    end if;
exception when insufficient_privilege then
    raise exception 'the role weir_tenant is needed: let an administrator run "create role weir_tenant nologin; grant weir_tenant to %"', current_user;
end $$;
-- +goose StatementEnd

-- +goose StatementBegin
create function weir.own(tenant uuid) returns boolean language sql stable as $$
    select current_user <> 'weir_tenant' or tenant = nullif(current_setting('weir.tenant', true), '')::uuid
$$;
-- +goose StatementEnd

alter table weir.tenants enable row level security;
create policy own on weir.tenants using (weir.own(id));
alter table weir.admin_tokens enable row level security;
create policy own on weir.admin_tokens using (weir.own(tenant_id));
alter table weir.api_keys enable row level security;
create policy own on weir.api_keys using (weir.own(tenant_id));
alter table weir.devices enable row level security;
create policy own on weir.devices using (weir.own(tenant_id));
alter table weir.join_tokens enable row level security;
create policy own on weir.join_tokens using (weir.own(tenant_id));
alter table weir.limits enable row level security;
create policy own on weir.limits using (weir.own(tenant_id));
alter table weir.policies enable row level security;
create policy own on weir.policies using (weir.own(tenant_id));
alter table weir.audit_log enable row level security;
create policy own on weir.audit_log using (weir.own(tenant_id));
alter table weir.usage_ledger enable row level security;
create policy own on weir.usage_ledger using (weir.own(tenant_id));
alter table weir.usage_minute enable row level security;
create policy own on weir.usage_minute using (weir.own(tenant_id));
alter table weir.usage_hour enable row level security;
create policy own on weir.usage_hour using (weir.own(tenant_id));

grant usage on schema weir to weir_tenant;
grant select on weir.tenants, weir.devices, weir.usage_ledger, weir.usage_minute, weir.usage_hour, weir.slo_classes, weir.prices to weir_tenant;
grant select, insert, update on weir.admin_tokens, weir.api_keys, weir.join_tokens to weir_tenant;
grant select, insert, update, delete on weir.limits, weir.policies to weir_tenant;
grant select, insert on weir.audit_log to weir_tenant;

-- Whoever changes configuration bumps its version, whatever else it may do.
alter function weir.bump_config() security definer set search_path = pg_catalog, pg_temp;

-- +goose Down
alter function weir.bump_config() security invoker reset search_path;
drop policy own on weir.tenants;
drop policy own on weir.admin_tokens;
drop policy own on weir.api_keys;
drop policy own on weir.devices;
drop policy own on weir.join_tokens;
drop policy own on weir.limits;
drop policy own on weir.policies;
drop policy own on weir.audit_log;
drop policy own on weir.usage_ledger;
drop policy own on weir.usage_minute;
drop policy own on weir.usage_hour;
drop function weir.own(uuid);
alter table weir.tenants disable row level security;
alter table weir.admin_tokens disable row level security;
alter table weir.api_keys disable row level security;
alter table weir.devices disable row level security;
alter table weir.join_tokens disable row level security;
alter table weir.limits disable row level security;
alter table weir.policies disable row level security;
alter table weir.audit_log disable row level security;
alter table weir.usage_ledger disable row level security;
alter table weir.usage_minute disable row level security;
alter table weir.usage_hour disable row level security;
revoke all on all tables in schema weir from weir_tenant;
revoke usage on schema weir from weir_tenant;
drop table weir.admin_replays;
alter table weir.limits drop column set_by;
