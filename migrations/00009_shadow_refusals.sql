-- +goose Up

-- How often a limit in shadow would have refused, over all gateways. A table of
-- its own: counting is no change of the configuration.
create table weir.shadow_refusals (
    limit_id  text primary key references weir.limits (id) on delete cascade,
    tenant_id uuid not null,
    refused   bigint not null
);
alter table weir.shadow_refusals enable row level security;
create policy own on weir.shadow_refusals using (weir.own(tenant_id));
grant select on weir.shadow_refusals to weir_tenant;

-- +goose Down
drop table weir.shadow_refusals;
