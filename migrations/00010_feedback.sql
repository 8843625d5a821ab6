-- +goose Up

-- Answers of pools that are equals, each with the propensity of its choice, and
-- what somebody or a check thought of them. Answers of other pools have a row once
-- they are scored; their model is empty. Nothing of prompt or answer is here.
create table weir.answers (
    tenant_id    uuid not null,
    operation_id uuid not null,
    device_id    uuid not null, -- all zero: straight to the cloud
    model        text not null check (length(model) <= 256), -- as asked
    class        text not null check (length(class) <= 128),
    pool         text not null check (length(pool) <= 256),
    propensity   double precision not null check (propensity between 0 and 1), -- 0: it stood in for another
    answered_at  timestamptz not null,
    score        double precision check (score between 0 and 1),
    kind         text check (kind in ('feedback', 'validator')),
    scored_at    timestamptz,
    primary key (tenant_id, operation_id),
    check ((score is null) = (kind is null) and (score is null) = (scored_at is null))
);
-- The newest labels of an arm, without a look at the table.
create index answers_of_arm on weir.answers (model, class, pool, answered_at desc, operation_id) include (tenant_id, score) where score is not null;
-- Those without a label go long before the others.
create index answers_unscored on weir.answers (answered_at) where score is null;
create index answers_scored on weir.answers (answered_at) where score is not null;
alter table weir.answers enable row level security;
create policy own on weir.answers using (weir.own(tenant_id));

-- What the pools have earned: sums over the newest labels of each arm, made anew
-- in the transaction of each label. The row is the lock of its arm.
create table weir.arms (
    model      text not null,
    class      text not null,
    pool       text not null,
    good       double precision not null default 0, -- weights of the labels, old ones fading
    bad        double precision not null default 0,
    labels     integer not null default 0,
    updated_at timestamptz not null default now(),
    primary key (model, class, pool)
);

-- An operation's attempts, for a score of an answer that was not noted.
create index usage_of_operation on weir.usage_ledger (tenant_id, operation_id);

-- +goose Down
drop index weir.usage_of_operation;
drop table weir.arms;
drop table weir.answers;
