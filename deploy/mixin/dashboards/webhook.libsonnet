// The dashboard of the webhook: reviews, latency, errors, policies, certificates and watches.
local p = import 'panels.libsonnet';
local q = import 'queries.libsonnet';

local info = 'kaishare_build_info{cluster=~"$cluster", component="webhook"}';
// A metric that both services have, of the webhook's replicas.
local ofWebhook(metric) = '(%s{cluster=~"$cluster"} and on (cluster, job, instance) %s)' % [metric, info];

local quantile(quantile, by) =
  'histogram_quantile(%s, sum by (cluster, %sle) (%s))' % [quantile, by, q.rate('kaishare_webhook_request_duration_seconds_bucket')];

// The part of the reviews that were answered within a bucket's limit.
local within(limit, window) =
  ('sum by (cluster) (rate(%(series)s_bucket{cluster=~"$cluster", le="%(limit)s"}[%(window)s]))'
   + ' / (sum by (cluster) (rate(%(series)s_count{cluster=~"$cluster"}[%(window)s])) > 0)')
  % { series: 'kaishare_webhook_request_duration_seconds', limit: limit, window: window };

// The part of the reviews that were neither shed nor failed in the webhook. A failure is counted by its stage, because a failed review
// of an enforcing webhook has no answer and no action (webhook/admission/handler.py). A stage without a series has not failed. The
// stages decode, slow-body and too-large are unusable requests of other clients.
local answered =
  local counted(metric, where) = 'sum by (cluster) %s' % q.beganOrGrew(metric, where, '$__range', '$__range_s');
  local shed = 'sum by (cluster) (increase(kaishare_webhook_shed_total{cluster=~"$cluster"}[$__range]))';
  local failed = counted('kaishare_webhook_errors_total', 'cluster=~"$cluster", stage=~"timeout|patch|policies|http|mutate|validate-.+"');
  local good = '(%s or 0 * %s)' % [counted('kaishare_webhook_requests_total', 'cluster=~"$cluster", action!="error"'), shed];
  '%s / ((%s + (%s + (%s or 0 * %s))) > 0)' % [good, good, shed, failed, shed];

// Series of the API server about kaishare's webhooks.
local ofKaishare = 'cluster=~"$cluster", name=~".+\\\\.kaishare\\\\.dev"';

local overview = [
  p.number('Replicas that answer', "How many replicas does Prometheus reach? Red at 0: new pods are probably admitted without queue and share; see KaishareWebhookDown in docs/runbooks.md. unknown: no target's job matches $webhook_job.",
    'sum by (cluster) (%s)' % q.webhookUp, limits=p.redBelow(1)),
  p.number('Reviews per second', 'How many admission reviews does the webhook answer? No reviews for long, while pods are created: the webhook is not called; see the row What the API server sees.',
    'sum by (cluster) (%s)' % q.rate('kaishare_webhook_requests_total'), unit=p.perSecond),
  p.number('Answered without a failure', 'Which part of the reviews in the selected time got an answer, and neither an error of the webhook nor a 503? Objective: 99.9 %. Red below: pods were admitted unchanged; see the row Errors and load. Reviews that never reached the webhook are in the row What the API server sees.',
    answered, unit=p.ratio, limits=p.redBelow(0.999), noValue='no reviews, or unknown'),
  p.number('Answered within 100 ms', 'Which part of the reviews in the selected time was answered within 100 ms? Objective: 99 %. Red below: creating pods is slow; see the row Reviews.',
    within('0.1', '$__range'), unit=p.ratio, limits=p.redBelow(0.99), noValue='no reviews, or unknown'),
  p.number('Shed in the last hour', 'How many reviews were answered with 503 because too many were in progress? Orange: see KaishareReviewsShed in docs/runbooks.md.',
    'round(sum by (cluster) (increase(kaishare_webhook_shed_total{cluster=~"$cluster"}[1h])))', limits=p.orangeFrom(1)),
  p.number('Reviews in progress', 'How many reviews are in progress now, in all replicas? Many for long: the webhook is too slow or gets too much.',
    'sum by (cluster) (kaishare_webhook_in_flight{cluster=~"$cluster"})'),
  p.number('Errors since the start', 'How many errors did the replicas count since they started, in reviews and elsewhere? No value: none. Orange: the row Errors and load shows the stage; see KaishareWebhookErrors in docs/runbooks.md.',
    'sum by (cluster) (kaishare_webhook_errors_total{cluster=~"$cluster"})', limits=p.orangeFrom(1), noValue='none, or unknown'),
  p.number('Admitted without the webhook, last hour', "How many requests did the API server admit because the webhook did not answer? Needs the API server's metrics. Red: pods have no queue and share; see KaishareFailedOpen in docs/runbooks.md. No value: none was counted since the API server started, or its metrics of the hour are missing.",
    q.knownOrZero('round(sum by (cluster) %s)' % q.beganOrGrew('apiserver_admission_webhook_fail_open_count', ofKaishare, '1h', '3600'), 'apiserver_admission_webhook_fail_open_count{cluster=~"$cluster", name=~".+\\\\.kaishare\\\\.dev"} offset 1h'),
    limits=p.redFrom(1), noValue='none, or unknown'),
  p.number('Called before KAI', "Is the webhook called before KAI's? 1: yes. Red at 0: KAI does not see the shares; see KaishareOrderWrong in docs/runbooks.md. unknown: policies come from files.",
    'min by (cluster) (kaishare_webhook_order_ok{cluster=~"$cluster"})', limits=p.redBelow(1)),
  p.number('Ignored labels', 'How many policy labels have a value that is not allowed, and are ignored? Orange: the row Policies names them.',
    q.knownOrZero('count by (cluster) (count by (cluster, namespace, label) (kaishare_webhook_policy_invalid{cluster=~"$cluster"}))', 'kaishare_webhook_policies{cluster=~"$cluster"}'),
    limits=p.orangeFrom(1)),
  p.number('First certificate ends in', 'When does the first serving certificate or CA end? Red below 2 days: it was not renewed; see KaishareServingCertificateEnding and KaishareCAEnding in docs/runbooks.md.',
    'min by (cluster) (kaishare_certificate_expiry_timestamp_seconds{cluster=~"$cluster"} - time())', unit=p.seconds, limits=p.redBelow(2 * 86400)),
  p.number('Oldest contact with the API server', 'How long has a watch been silent? A healthy watch restarts every 40 s. Red from 5 minutes: policies are out of date; see KaishareWatchStale in docs/runbooks.md. unknown: policies come from files.',
    'max by (cluster) (time() - %s)' % ofWebhook('kaishare_watch_last_contact_timestamp_seconds'), unit=p.seconds, limits=p.redFrom(300)),
  p.lines('Reviews, by action', 'What does the webhook do? docs/metrics.md explains each action. error: kaishare failed, and a pod was admitted unchanged.',
    [p.by('sum', 'cluster, webhook, action', q.rate('kaishare_webhook_requests_total'))],
    unit=p.perSecond),
  p.lines('Time to answer', 'How long do reviews take, from the complete request to the complete answer? The API server waits for the configured timeout, and then admits the pod unchanged.',
    [['%s {{cluster}}' % label[1], quantile(label[0], '')] for label in [[0.5, 'half'], [0.9, '90 %'], [0.99, '99 %']]],
    unit=p.seconds, limits=p.orangeFrom(0.1)),
  p.rows('Alerts about the webhook', 'Which alerts about the webhook are pending or firing? Each has a section in docs/runbooks.md.',
    'cluster, alertname, alertstate, severity, namespace, name, runbook', [
      p.column('active', p.withRunbook('sum by (cluster, alertname, alertstate, severity, namespace, name) (ALERTS{cluster=~"$cluster", alertname=~"Kaishare(Webhook|FailedOpen|Patch|Enforce|Order|Policy|Serving|CA|Certificate|Reviews|Watch).*"})')),
    ], links=[p.toRunbook], noValue='none', height=6),
];

local reviews = [
  p.lines('Reviews, by reason', 'Why are pods changed, left alone or denied? The ten most frequent reasons of each cluster; docs/policy.md explains them.',
    [['{{cluster}} {{reason}}', 'topk by (cluster) (10, sum by (cluster, reason) (%s))' % q.rate('kaishare_webhook_requests_total')]],
    unit=p.perSecond, width=8),
  p.lines('Time to answer, 99 %, by webhook', 'Which of the three webhooks is slow?',
    [['{{cluster}} {{webhook}}', quantile(0.99, 'webhook, ')]], unit=p.seconds, width=8),
  p.lines('Answered within 100 ms and within 25 ms', 'Is the objective of 99 % within 100 ms kept? Below the line it is not.',
    [
      ['100 ms {{cluster}}', within('0.1', '$__rate_interval')],
      ['25 ms {{cluster}}', within('0.025', '$__rate_interval')],
    ], unit=p.ratio, limits=p.redBelow(0.99), width=8),
];

local errors = [
  p.lines('Errors, by stage', 'Where does the webhook fail? docs/metrics.md explains each stage; decode, slow-body and too-large are unusable requests of other clients. No line: none since the start.',
    [p.by('sum', 'cluster, stage', q.rate('kaishare_webhook_errors_total'))], unit=p.perSecond, width=12),
  p.lines('Shed reviews', 'When were there too many reviews at once? Each was answered with 503; the API server retries.',
    [['shed {{cluster}}', 'sum by (cluster) (%s)' % q.rate('kaishare_webhook_shed_total')]], unit=p.perSecond, width=12),
];

local apiServer = [
  p.lines('Admitted without the webhook', 'Which requests passed because the webhook gave no usable answer in time? Only the API server knows; needs its metrics, and for webhooks in vClusters those of the vClusters.',
    [p.by('sum', 'cluster, name', q.rate('apiserver_admission_webhook_fail_open_count', ofKaishare))],
    unit=p.perSecond, width=6),
  p.lines('Failures of the admission policy', "How often did kaishare's MutatingAdmissionPolicy fail, so that the API server admitted a pod unchanged? No line: never since its start, or the webhook decides about pods.",
    [p.by('sum', 'cluster, error_type', q.rate('apiserver_mutating_admission_policy_check_total', 'cluster=~"$cluster", policy="kaishare", error_type!="no_error"'))],
    unit=p.perSecond, width=6),
  p.lines('Refused, by cause', 'Which requests were refused? no_error: a denial of the webhook. calling_webhook_error: no usable answer under failurePolicy Fail. apiserver_internal_error: a patch that does not apply, a defect of kaishare.',
    [p.by('sum', 'cluster, name, error_type', q.rate('apiserver_admission_webhook_rejection_count', ofKaishare))],
    unit=p.perSecond, width=6),
  p.lines('Time the API server waits, 99 %', 'How much time do reviews take with the network, as the API server measures it? Far above Time to answer: the network or TLS is slow.',
    [['{{cluster}} {{name}}', 'histogram_quantile(0.99, sum by (cluster, name, le) (%s))' % q.rate('apiserver_admission_webhook_admission_duration_seconds_bucket', ofKaishare)]],
    unit=p.seconds, width=6),
];

local policies = [
  p.lines('Pods in mode observe, by reason', 'What would the webhook change in namespaces with mode observe? It counts these pods and changes none; docs/start/cluster-in-use.md says how to go on. No line: no such pod since the start.',
    [p.by('sum', 'cluster, reason', q.rate('kaishare_webhook_requests_total', 'cluster=~"$cluster", action="observed"'))],
    unit=p.perSecond),
  p.lines('Managed namespaces, by state of their policy', 'How many namespaces have a policy, and how many policies are invalid or off?',
    [['{{cluster}} {{state}}', 'max by (cluster, state) (kaishare_webhook_policies{cluster=~"$cluster"})']]),
  p.rows('Invalid labels', 'Which labels of which namespaces are ignored? docs/policy.md has the allowed values; the owner of the namespace also has an Event PolicyInvalid.',
    'cluster, namespace, label', [p.column('ignored', 'max by (cluster, namespace, label) (kaishare_webhook_policy_invalid{cluster=~"$cluster"})')],
    links=[p.toNamespace([])], width=12),
];

local processes = [
  p.rows('Certificates', 'When do the certificates end? serving: the first of all replicas, renewed with more than 2 days left. ca: absent if the webhook does not manage it. Red below 2 days.',
    'cluster, kind', [
      p.column('ends in', 'min by (cluster, kind) (kaishare_certificate_expiry_timestamp_seconds{cluster=~"$cluster"}) - time()', p.seconds, limits=p.redBelow(2 * 86400)),
    ], width=8),
  p.rows('Changes of certificates since the start', 'What did the replicas do about certificates? failed: see KaishareCertificateRotationFailing in docs/runbooks.md.',
    'cluster, result', [p.column('changes', 'sum by (cluster, result) (kaishare_certificate_rotations_total{cluster=~"$cluster"})')],
    sortBy='changes', noValue='none, or certificates are given', width=8),
  p.rows('Replicas', 'Which replicas run, and in which version?',
    'cluster, instance, version', [p.column('runs', 'max by (cluster, instance, version) (%s)' % info)], width=8),
  p.lines('Time since the last contact, by watch', 'Does each replica hear from the API server? A healthy watch restarts every 40 s.',
    [['{{cluster}} {{instance}} {{resource}}', 'max by (cluster, instance, resource) (time() - %s)' % ofWebhook('kaishare_watch_last_contact_timestamp_seconds')]],
    unit=p.seconds, limits=p.redFrom(300), width=8),
  p.lines('Watch restarts, by cause', 'Why do watches restart? closed is the normal timeout.',
    [['{{cluster}} {{resource}} {{cause}}', 'sum by (cluster, resource, cause) (%s and on (cluster, job, instance) %s)' % [q.rate('kaishare_watch_restarts_total'), info]]],
    unit=p.perSecond, width=8),
  p.lines('Lost log lines', 'Does the log have gaps? Lines that a replica dropped because standard error was full or closed.',
    [['{{cluster}} {{instance}}', 'max by (cluster, instance) %s' % ofWebhook('kaishare_log_lines_lost_total')]], width=8),
];

p.dashboard(
  'webhook', 'Webhook',
  'Admission reviews of the webhook: how many, how fast, which failed; policies, certificates, watches.',
  variables=[p.datasource, p.cluster, p.webhookJob, p.runbooks],
  annotations=[p.versions('webhook')],
  overview=overview,
  sections=[
    p.section('Reviews', reviews),
    p.section('Errors and load', errors),
    p.section('What the API server sees', apiServer),
    p.section('Policies', policies),
    p.section('Certificates, watches and processes', processes),
  ],
)
