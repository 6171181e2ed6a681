// The dashboard of one node: its GPUs, the pods on each, memory of no pod, and the agent's health.
local p = import 'panels.libsonnet';
local q = import 'queries.libsonnet';
local tables = import 'pods.libsonnet';

local onNode = 'cluster=~"$cluster", node="$node"';
local pods = q.pods + ', node="$node"';
local podLabels = 'cluster, gpu, namespace, pod, vcluster, virtual_namespace, virtual_pod, queue';
local byGpu = '{{cluster}} GPU {{gpu}}';
local byPod = '{{cluster}} {{namespace}}/{{pod}} GPU {{gpu}}';

// Series of the node's agent. Its figures of GPUs name the node; `up` does where scraping adds the label.
local agentSeries = '(%s or up{%s, %s})' % [q.reportedGpus(onNode), onNode, q.ofAgents(q.cluster)];
local ofAgent(metric, where=q.cluster) = '(%s{%s} and on (cluster, job, instance) %s)' % [metric, where, agentSeries];
local agentRate(metric) = '(%s and on (cluster, job, instance) %s)' % [q.rate(metric), agentSeries];

local overview = [
  p.number('GPUs', 'How many GPUs of this node does its agent watch? Fewer than the node has: a GPU does not answer; see the row Agent.',
    'count by (cluster) (group by (cluster, node, gpu, gpu_uuid, model) (%s))' % q.reportedGpus(onNode), width=3),
  p.number('Promised', "How much of the node's GPU memory is promised? Red above 101 %: KAI placed too much; see KaishareGPUOverpromised in docs/runbooks.md.",
    q.promisedRatio(where=onNode), unit=p.ratio, limits=p.redFrom(1.01), width=3),
  p.number('Used', "How much of the node's GPU memory is in use, by any process? Near 100 %: an allocation of any pod here may fail.",
    q.ratio(q.gpu('used', onNode), q.gpu('total', onNode)), unit=p.ratio, width=3),
  p.number('Flagged pods', 'How many pods of this node are flagged? unknown: no pod is evaluated. Red: the table Pods names them.',
    q.flaggedPods(pods), limits=p.redFrom(1), width=3),
  p.number('Held by no pod', 'How much GPU memory do processes of the host hold? KAI does not count it. Orange from 2 GiB: see KaishareGPUMemoryOutsidePods in docs/runbooks.md.',
    'sum by (cluster) (%s)' % q.gpu('host', onNode), unit=p.bytes, limits=p.orangeFrom(2 << 30), width=3),
  p.number('Held by no process', "How much used GPU memory does no process account for? Some hundred MiB for each GPU are normal: page tables and the driver. CUDA's managed memory is here too.",
    'sum by (cluster) (%s)' % q.gpu('unattributed', onNode), unit=p.bytes, width=3),
  p.number('Attribution', 'Can the agent tell which pod holds memory? 1: yes. Red at 0: verdicts about all pods of the node are suspended; the row Agent names the problem.',
    'min by (cluster) %s' % ofAgent('kaishare_agent_attribution_ok'), limits=p.redBelow(1), width=3),
  p.number('Age of the last sample', 'How old is the last sample for which the driver answered? Red from a minute: see KaishareAgentBlind in docs/runbooks.md. The clocks of the node and of Prometheus may differ.',
    'max by (cluster) (time() - %s)' % ofAgent('kaishare_agent_last_sample_timestamp_seconds'),
    unit=p.seconds, limits=p.redFrom(60), width=3),
  p.rows('GPUs of the node', 'What is promised, used and free on each GPU? promised in red: more than the GPU has. at risk in red: memory that pods were promised and that is not free. free share is what KAI can still place there, whatever is in use; GPUs in MIG mode without pods, time-sliced GPUs, and whole GPUs whose pod has not used them yet count as free. An empty cell is unknown.',
    'cluster, gpu, model, gpu_uuid', [
      p.column('total', q.gpu('total', onNode), p.bytes),
      p.column('promised', q.promisedPart(onNode), p.ratio, limits=p.redFrom(1.01)),
      p.column('at risk', q.atRisk(onNode), p.bytes, limits=p.redFrom(1)),
      p.column('free share', '%s / 100' % q.freeHundredths(onNode), p.ratio),
      p.column('used', '%s / %s' % [q.gpu('used', onNode), q.gpu('total', onNode)], p.ratio),
      p.column('held by the host', q.gpu('host', onNode), p.bytes),
      p.column('held by no process', q.gpu('unattributed', onNode), p.bytes),
      p.column('reserved by the driver', q.gpu('reserved', onNode), p.bytes),
      p.column('utilisation (dcgm-exporter)', '0 * %s + on (cluster, gpu_uuid) group_left () gpu:dcgm_utilization:ratio' % q.gpu('total', onNode), p.ratio),
    ]),
  tables.atRisk(onNode, podLabels, width=12),
  tables.neighbours(onNode, podLabels, width=12),
  p.rows('Pods', 'Which pods are on which GPU, and do they keep to their shares? use of share in red: above by more than 5 %. flagged is empty while the pod is not evaluated; the reason is in the table Flags. utilisation is empty where the driver does not report it.',
    podLabels, tables.columns(pods), sortBy='use of share', links=[p.toNamespace()], height=10),
  p.rows('Flags', 'Why are pods of this node flagged? docs/flags.md has the reasons, docs/runbooks.md what to do.',
    podLabels + ', reason', [p.column('flagged', '%s == 1' % q.flagged(pods))], links=[p.toNamespace()], width=12, height=6),
  p.rows('Page of the agent', "Where is the agent's own page, with every process? The link works if the browser reaches the pod network and the network policy admits it; else use kubectl port-forward. The variable Agent page sets http or https.",
    'cluster, instance, version, driver', [
      p.column('agents', 'max by (cluster, instance, version, driver) %s' % ofAgent('kaishare_build_info', 'cluster=~"$cluster", component="agent"')),
    ], links=[p.toAgentPage], width=12, height=6),
];

local podsOverTime = [
  p.lines('Used, by pod', 'Which pod grew, and when?',
    [[byPod, q.used(pods)]], unit=p.bytes, stacked=true),
  p.lines('Use of share, by pod', 'Which pods are above their shares? Above 100 % plus the slack the agent counts time towards a flag.',
    [[byPod, '%s / %s' % [q.used(pods), q.share(pods)]]], unit=p.ratio, limits=p.redFrom(1)),
  p.lines('Utilisation, by pod', 'Which pods had a kernel on a GPU, for which part of the time? Not the occupancy of the GPU. No line: the driver does not report it.',
    [[byPod, q.utilization(pods)]], unit=p.ratio),
];

local gpusOverTime = [
  p.lines('Used, by GPU', 'Which GPU fills up? Used memory divided by total.',
    [[byGpu, '%s / %s' % [q.gpu('used', onNode), q.gpu('total', onNode)]]], unit=p.ratio),
  p.lines('Promised, by GPU', 'Which GPU is booked out? Above 101 %: KAI placed too much.',
    [[byGpu, q.promisedPart(onNode)]], unit=p.ratio, limits=p.redFrom(1.01)),
  p.lines('Held by processes of the host, by GPU', 'Does software of the host take memory that pods were promised?',
    [[byGpu, q.gpu('host', onNode)]], unit=p.bytes, width=8),
  p.lines('Held by no process, by GPU', 'Does memory leak? Growth that stays after pods end is memory that the driver has not released; see KaishareGPUMemoryOutsidePods in docs/runbooks.md.',
    [[byGpu, q.gpu('unattributed', onNode)]], unit=p.bytes, width=8),
  p.lines('Utilisation of GPUs by dcgm-exporter', 'Does the GPU compute, for any process? Needs dcgm-exporter and the recorded figure gpu:dcgm_utilization:ratio.',
    [[byGpu, 'gpu:dcgm_utilization:ratio * on (cluster, gpu_uuid) group_left (node, gpu) group by (cluster, node, gpu, gpu_uuid, model) (%s)' % q.reportedGpus(onNode)]],
    unit=p.ratio, width=8),
];

local agent = [
  p.number('Answers Prometheus', 'Does the agent answer? 1: yes. Red at 0: see KaishareAgentDown in docs/runbooks.md. unknown: Prometheus has no target of this node.',
    'max by (cluster) %s' % ofAgent('up', 'cluster=~"$cluster", job=~"$agent_job"'), limits=p.redBelow(1), width=6),
  p.number('Lost log lines', 'How many lines of its log did the agent drop since it started, because standard error was full or closed? Orange: the log has gaps.',
    'sum by (cluster) %s' % ofAgent('kaishare_log_lines_lost_total'), limits=p.orangeFrom(1), width=6),
  p.number('Failed driver calls since the start', 'How many calls of the driver failed? No value: none. Orange: the panel Failed driver calls shows which, and docs/runbooks.md what to do.',
    'sum by (cluster) %s' % ofAgent('kaishare_agent_nvml_errors_total'), limits=p.orangeFrom(1), noValue='none, or unknown', width=6),
  p.number('Oldest contact with the API server', 'How long has a watch of the agent been silent? A healthy watch is renewed after 150 s. Red from 5 minutes: see KaishareWatchStale in docs/runbooks.md. unknown: pods come from a file.',
    'max by (cluster) (time() - %s)' % ofAgent('kaishare_watch_last_contact_timestamp_seconds'),
    unit=p.seconds, limits=p.redFrom(300), width=6),
  p.rows('Problems', 'Why are verdicts suspended? docs/metrics.md explains each reason. Without a GPU the problem is one of the whole node.',
    'cluster, reason, gpu_uuid', [p.column('problem', 'max by (cluster, reason, gpu_uuid) %s' % ofAgent('kaishare_agent_attribution_problem'))], width=8),
  p.lines('Time to take a sample', 'How long do samples take? Seconds: the driver or /proc is slow.',
    [
      ['99 % {{cluster}}', 'histogram_quantile(0.99, sum by (cluster, le) %s)' % agentRate('kaishare_agent_sample_duration_seconds_bucket')],
      ['half {{cluster}}', 'histogram_quantile(0.5, sum by (cluster, le) %s)' % agentRate('kaishare_agent_sample_duration_seconds_bucket')],
    ], unit=p.seconds, width=8),
  p.lines('Failed driver calls', 'Which calls of the driver fail, and with which error? No line: none has failed since the agent started.',
    [['{{cluster}} {{call}} {{error}}', 'sum by (cluster, call, error) %s' % agentRate('kaishare_agent_nvml_errors_total')]],
    unit=p.perSecond, width=8),
  p.lines('Flags raised, cleared and dropped', 'Do flags come and go on this node? Flags in the hour before, by reason and change.',
    [['{{cluster}} {{reason}} {{change}}', 'round(sum by (cluster, reason, change) (increase(kaishare_agent_flag_transitions_total{cluster=~"$cluster"}[1h]) and on (cluster, job, instance) %s)) > 0' % agentSeries]],
    width=8),
  p.rows('Evictions since the agent started', 'What did the agent decide about pods whose namespaces ask for eviction? docs/flags.md explains each result.',
    'cluster, result', [p.column('decisions', 'sum by (cluster, result) %s' % ofAgent('kaishare_agent_evictions_total'))],
    sortBy='decisions', noValue='none, or eviction is off', width=8),
  p.rows('Events since the agent started', 'Did owners of pods get the Events about flags? dropped and failed: see KaishareEventsLost in docs/runbooks.md.',
    'cluster, reason, result', [p.column('Events', 'sum by (cluster, reason, result) %s' % ofAgent('kaishare_agent_events_total'))],
    sortBy='Events', noValue='none, or Events are off', width=8),
];

p.dashboard(
  'node', 'Node',
  'GPUs and pods of one node, memory that belongs to no pod, and the health of its agent.',
  variables=[
    p.datasource, p.cluster, p.single('node', 'Node', 'Node whose agent reports GPUs.', 'label_values(%s, node)' % q.gpuNames),
    p.origin, p.vcluster(onNode), p.agentScheme, p.agentJob,
  ],
  annotations=[p.flagsRaised(' and on (cluster, job, instance) ' + agentSeries), p.versions('agent')],
  overview=overview,
  sections=[
    p.section('Pods over time', podsOverTime),
    p.section('GPUs over time', gpusOverTime),
    p.section('Agent', agent),
  ],
)
