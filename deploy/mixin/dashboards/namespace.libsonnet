// The dashboard for the owner of a namespace's policy: its pods, their use of shares, flags, and waste.
local p = import 'panels.libsonnet';
local q = import 'queries.libsonnet';
local tables = import 'pods.libsonnet';

local inNamespace = 'cluster=~"$cluster", namespace=~"$namespace"';
local pods = inNamespace + ', vcluster=~"$vcluster", virtual_namespace=~"$virtual_namespace"';
local podLabels = 'cluster, namespace, pod, vcluster, virtual_namespace, virtual_pod, queue, node, gpu';
local byPod = '{{cluster}} {{namespace}}/{{pod}} GPU {{gpu}}';

local overview = [
  p.number('Pods', 'How many pods have a share or are on a GPU?',
    'count by (cluster) (count by (cluster, uid) (kaishare_pod_info{%s}))' % pods),
  p.number('Promised', 'How much GPU memory may these pods use in all? The sum of their shares.',
    'sum by (cluster) (%s)' % q.share(pods), unit=p.bytes),
  p.number('Used', 'How much GPU memory do these pods use? Pods whose use is unknown are left out.',
    'sum by (cluster) (%s)' % q.used(pods), unit=p.bytes),
  p.number('Used of promised', 'How well do the shares fit? Over the pods of which both figures are known. Far below 100 %: smaller shares would do; see the row Waste. Red above 105 %: pods hold memory of others.',
    q.ratio(q.used(pods), q.share(pods)), unit=p.ratio, limits=p.redFrom(1.05)),
  p.number('Flagged pods', 'How many of these pods are flagged? unknown: none is evaluated. Red: the table Flags has the reasons, docs/runbooks.md what to do. A flagged pod is evicted only if the namespace asks for it.',
    q.flaggedPods(pods), limits=p.redFrom(1)),
  p.number('Policy labels that are ignored', 'How many labels of these namespaces have a value that is not allowed, and are ignored? Red: the table Ignored labels names them. 0 needs a running webhook.',
    q.knownOrZero('count by (cluster) (count by (cluster, namespace, label) (kaishare_webhook_policy_invalid{%s}))' % inNamespace, 'kaishare_webhook_policies{cluster=~"$cluster"}'),
    limits=p.redFrom(1)),
  p.rows('Pods and their shares', 'What does each pod use of its share, and does it compute? use of share in red: above by more than 5 %. flagged is empty while the pod is not evaluated. utilisation is the part of the time with a kernel on the GPU, and empty where the driver does not report it. used is empty where it is unknown.',
    podLabels, p.largest(100, tables.columns(pods), rank=q.useOfShare(pods)), sortBy='use of share', links=[p.toNode(['agent_job'])], height=10),
  p.rows('Flags', 'Which pods are flagged, and why? docs/flags.md has the reasons, docs/runbooks.md what to do about each.',
    podLabels + ', reason', [p.column('flagged', '%s == 1' % q.flagged(pods))], links=[p.toNode(['agent_job'])], width=14, height=6),
  p.rows('Ignored labels', 'Which labels of these namespaces have a value that is not allowed? The webhook ignores them; docs/policy.md has the allowed values.',
    'cluster, namespace, label', [p.column('ignored', 'max by (cluster, namespace, label) (kaishare_webhook_policy_invalid{%s})' % inNamespace)], width=10, height=6),
];

local overTime = [
  p.lines('Used and promised', 'Do the shares follow the need? Pods whose use is unknown are left out of used.',
    [
      ['promised {{cluster}}', 'sum by (cluster) (%s)' % q.share(pods)],
      ['used {{cluster}}', 'sum by (cluster) (%s)' % q.used(pods)],
    ], unit=p.bytes),
  p.lines('Use of share, by pod', 'Which pods come close to their shares, or exceed them? The 20 highest.',
    [[byPod, 'topk by (cluster) (20, %s / %s)' % [q.used(pods), q.share(pods)]]], unit=p.ratio, limits=p.redFrom(1)),
  p.lines('Used, by pod', 'Which pod grew, and when? The 20 largest.',
    [[byPod, 'topk by (cluster) (20, %s)' % q.used(pods)]], unit=p.bytes, stacked=true),
  p.lines('Utilisation, by pod', 'Which pods compute with what they hold? Part of the time with a kernel on the GPU. No line: the driver does not report it.',
    [[byPod, 'topk by (cluster) (20, %s)' % q.utilization(pods)]], unit=p.ratio),
  p.lines('Part of the time over the share, by pod', 'How much of the time does a pod exceed its share plus slack? Above a third, the agent flags it.',
    [[byPod, 'topk by (cluster) (20, max by (cluster, namespace, pod, gpu) (rate(kaishare_pod_over_share_seconds_total{%s}[$__rate_interval])))' % pods]],
    unit=p.ratio, limits=p.orangeFrom(0.33)),
];

local sizes =
  // One series for each pod: two agents may describe a pod for a moment, while one replaces the other.
  local info = 'topk by (cluster, uid) (1, kaishare_pod_info{%s})' % pods;
  local by(labels, figure) = 'sum by (cluster, %s) ((%s) * on (cluster, uid) group_left (%s) %s)' % [labels, figure, labels, info];
  local ofShare(labels) =
    local known(figure, other) = by(labels, '%s and %s' % [figure, other]);
    '%s / %s' % [known(q.used(pods), q.share(pods)), known(q.share(pods), q.used(pods))];
  // Workloads of two namespaces, or of two namespaces of a vCluster, may have one name.
  local workload = 'namespace, vcluster, virtual_namespace, workload_kind, workload';
  [
    p.rows('Sizes in use', "Which named sizes do the pods have, and how much of them do they use? A row without a size: pods with a share of their own or the namespace's default.",
      'cluster, size', [
        p.column('pods', 'count by (cluster, size) (%s)' % info),
        p.column('share', by('size', q.share(pods)), p.bytes),
        p.column('used', by('size', q.used(pods)), p.bytes),
        p.column('use of share', ofShare('size'), p.ratio),
      ], sortBy='share', width=12),
    p.rows('Workloads', 'Which Deployments, StatefulSets and Jobs hold how much? A row without a name: pods without a controller.',
      'cluster, ' + workload, [
        p.column('pods', 'count by (cluster, %s) (%s)' % [workload, info]),
        p.column('share', by(workload, q.share(pods)), p.bytes),
        p.column('used', by(workload, q.used(pods)), p.bytes),
        p.column('use of share', ofShare(workload), p.ratio),
      ], sortBy='share', width=12),
  ];

// Shares that would do, in parts of the memory that KAI counts. Pods of one size or workload can have different shares.
local advice(title, question, subject) =
  local labels = 'cluster, namespace, vcluster, virtual_namespace, %s, model' % subject;
  local byPod = labels + ', uid';
  local record(name) = 'pod:kaishare_gpu_%s{%s}[$__range]' % [name, q.ofAgents(pods)];
  local withShare = 'count_values by (%s) ("share", round(max by (%s) (last_over_time(%s)), 0.001))' % [byPod, byPod, record('share:ratio')];
  local ofShare(aggregation, figure) =
    '%s by (%s, share) ((%s) * on (%s) group_left (share) %s)' % [aggregation, labels, figure, byPod, withShare];
  // Adds what a pod has under several descriptions; its GPUs have the same time.
  local summed(figure) = ofShare('sum', 'max by (%s) (sum by (%s, job, gpu_uuid) (%s))' % [byPod, byPod, figure]);
  local largest(figure) = ofShare('max', 'max by (%s) (%s)' % [byPod, figure]);
  p.rows(title,
    question
    + " In parts of the GPU's memory as KAI counts it. Each pod counts with its last share. 99 % of the time: the quantile 0.99 of the pod "
    + 'that used most. Select at least a day. The advice of kaishare advise adds 15 % to it and names the pods that fill their share '
    + 'whatever it is.',
    labels + ', share', [
      p.column('pod-hours', summed('count_over_time(%s)' % record('share:ratio')) + ' / 60'),
      p.column('used in 99 % of the time', largest('quantile_over_time(0.99, %s)' % record('used:ratio')), p.ratio),
      p.column('peak', largest('max_over_time(%s)' % record('used:max1m')), p.ratio),
      p.column('hours over the share', summed('sum_over_time(%s)' % record('over:seconds1m')) + ' / 3600'),
    ], sortBy='pod-hours');

local waste =
  local highest = q.peakUsed(pods);
  [
    p.number('Unused for 7 days', 'How much of the shares has no sample of the last 7 days shown in use? Only pods that are 7 days old, with their use known for 90 % of that time. Orange: the table names the pods; lower their share or size.',
      'sum by (cluster) %s' % q.judged(q.unused(pods), pods),
      unit=p.bytes, limits=p.orangeFrom(1 << 30), noValue='no pod is 7 days old, or unknown', width=12),
    p.number('Longest history', 'How long at least does Prometheus know the oldest of these pods? In steps: 7 days, 3 days, 1 day, 6 hours, 1 hour, less.',
      'max by (cluster) (%s)' % q.seen(pods), unit=p.seconds, width=12),
    p.rows('Promised and never used', 'Which pods could have a smaller share, and how small? highest use is the largest sample of 7 days; a share a little above it would have done. Trust a row as far as it was seen, and as its use was known in the samples. Hours without an agent have no samples.',
      podLabels, p.largest(50, [
        p.column('unused', q.unused(pods), p.bytes),
        p.column('share', q.share(pods), p.bytes),
        p.column('highest use', q.ofCurrentPods(highest, pods), p.bytes),
        p.column('highest use of share', '(%s) / %s' % [q.ofCurrentPods(highest, pods), q.share(pods)], p.ratio),
        p.column('seen for at least', q.ofCurrentPods(q.seen(pods), pods), p.seconds),
        p.column('use known', q.ofCurrentPods(q.knownPart(pods), pods), p.ratio),
      ]), sortBy='unused', links=[p.toNode(['agent_job'])], height=10),
  ];

p.dashboard(
  'namespace', 'Namespace',
  'For the owner of a policy: pods with GPU shares, what they use, why they are flagged, and which shares could be smaller.',
  variables=[
    p.datasource, p.cluster,
    p.some(
      'namespace', 'Namespace', "Namespace of the host cluster. The pods of a vCluster are in the vCluster's namespace.",
      'label_values(kaishare_pod_info{cluster=~"$cluster"}, namespace)'
    ),
    p.vcluster(inNamespace),
    p.several(
      'virtual_namespace', 'Namespace in the vCluster',
      'Namespace as the tenant of the vCluster knows it. All also contains pods of the host.',
      'label_values(kaishare_pod_info{%s, vcluster=~"$vcluster"}, virtual_namespace)' % inNamespace
    ),
    p.agentJob,
  ],
  annotations=[p.versions('webhook')],
  overview=overview,
  sections=[
    p.section('Over time', overTime),
    p.section('Sizes and workloads', sizes),
    p.section('Advice: which shares would do', [
      advice('Use against share, by size', 'Which sizes are too large or too small?', 'size'),
      advice('Use against share, by workload', 'Which workloads need another share?', 'workload_kind, workload'),
    ]),
    p.section('Waste: promised and not used for 7 days (reads 7 days of samples)', waste),
  ],
)
