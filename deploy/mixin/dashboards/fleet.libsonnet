// The dashboard of all nodes: what is promised, used, wrong, free and wasted.
local p = import 'panels.libsonnet';
local q = import 'queries.libsonnet';
local pods = import 'pods.libsonnet';

local selected = q.pods + ', queue=~"$queue"';
local podLabels = 'cluster, namespace, pod, vcluster, virtual_namespace, virtual_pod, queue, node, gpu';
local toNode = p.toNode(['agent_scheme', 'agent_job']);
local countedAsFree = 'GPUs in MIG mode without pods, time-sliced GPUs, and whole GPUs whose pod has not used them yet count as free: no metric tells them apart.';

// Grafana merges a row without the label into any row with the same names.
local onHost(figure) = 'label_replace(%s, "vcluster", "(host)", "vcluster", "")' % figure;

// Pods that wait for KAI, by kube-state-metrics: KAI has no figure of them (v0.17.0 pkg/queuecontroller/metrics/metrics.go, docs/dashboards.md).
local ofKai = 'max by (cluster, namespace, uid) (kube_pod_scheduler{cluster=~"$cluster", name=~"$kai_scheduler"})';
local scheduled = 'kube_pod_status_scheduled_time{cluster=~"$cluster"}';
// A pod that pulls its images is pending, too.
local waiting = '(%s and on (cluster, uid) (kube_pod_status_phase{cluster=~"$cluster", phase="Pending"} == 1) unless on (cluster, uid) %s)'
                % [ofKai, scheduled];

local overview =
  local alertLabels = 'cluster, alertname, alertstate, severity, namespace, pod, node, queue, name, instance';
  // By GPU, with all labels of the GPU.
  local aboveShares = '0 * %s + on (cluster, node, gpu_uuid) group_left () (sum by (cluster, node, gpu_uuid) (%s))'
                      % [q.atRisk(), q.aboveShare(q.cluster)];
  [
    p.number('GPUs at risk now', 'On how many GPUs is memory that pods were promised not free? Their next allocation may fail. Red: the table GPUs at risk names them; see KaishareGPUMemoryAtRisk in docs/runbooks.md.',
      q.knownOrZero('count by (cluster) (%s > 0)' % q.atRisk(), q.atRisk()), limits=p.redFrom(1)),
    p.number('Memory at risk', 'How much memory were pods promised, do not use yet, and is not free? Red from the first byte.',
      'sum by (cluster) (%s)' % q.atRisk(), unit=p.bytes, limits=p.redFrom(1)),
    p.number('Neighbours that restarted, last hour', 'How many pods restarted or failed in the last hour, on a GPU that was at risk or where another pod was flagged in that hour? Orange: the row At risk names them. A restart may have another cause.',
      q.knownOrZero('count by (cluster) (count by (cluster, uid) (%s))' % q.hitNeighbours(), '%s and on (cluster) kube_pod_container_status_restarts_total{cluster=~"$cluster"}' % q.reportedGpus()),
      limits=p.orangeFrom(1), noValue='no kube-state-metrics'),
    p.number('First GPU full in', 'When does a GPU run out of memory, if it fills as in the last day? Red below 4 hours, orange below a day: the table GPUs that run out next names it. Needs the recorded figures.',
      'min by (cluster) (%s)' % q.forecast('full:seconds'), unit=p.seconds, limits=p.limits('red', [[4 * 3600, 'orange'], [24 * 3600, 'green']]), noValue='not within 7 days, or unknown'),
    p.number('Flagged pods', 'How many pods are flagged now? 0: all evaluated pods keep to their shares. unknown: no pod is evaluated. Red: the row Flags names the pods.',
      q.flaggedPods(selected), limits=p.redFrom(1)),
    p.number('Flags raised in the last hour', 'How often did agents flag a pod in the last hour, also pods that are no longer flagged? An agent that restarts flags its pods again. All pods count, whichever are selected. Orange: the row Flags shows when and why.',
      'round(sum by (cluster) (increase(kaishare_agent_flag_transitions_total{cluster=~"$cluster", change="raised"}[1h])))', limits=p.orangeFrom(1)),
    p.rows('GPUs at risk', 'On which GPUs is memory that pods were promised not free, and how much? Red: at risk. above shares is what pods there hold above their shares; empty: the shares exceed the GPU. Click a node for its pods; see KaishareGPUMemoryAtRisk in docs/runbooks.md.',
      'cluster, node, gpu, model', p.largest(50, [
        p.column('at risk', '%s > 0' % q.atRisk(), p.bytes, limits=p.redFrom(1)),
        p.column('free', q.free(), p.bytes),
        p.column('above shares', aboveShares, p.bytes),
      ], on='cluster, node, gpu_uuid'), sortBy='at risk', links=[toNode], noValue='no GPU is at risk, or unknown', width=12, height=6),
    p.rows('GPUs that run out next', 'Which GPU is full first, if it fills as in the last day? A trend and no promise: a pod that starts is a step, and reads as a trend for up to three hours. Red below 4 hours left, orange below 24. Listed are GPUs that also filled in the last 3 hours, and are full within 7 days. A GPU with samples of 6 hours or less is not listed. Needs the recorded figures.',
      'cluster, node, gpu, model', p.largest(20, [
        p.column('hours left', 'round(%s / 360) / 10' % q.forecast('full:seconds'), p.count, limits=p.limits('red', [[4, 'orange'], [24, 'green']])),
        p.column('free', q.forecast('free_bytes:min'), p.bytes),
        p.column('fills by, an hour', '-3600 * %s' % q.forecast('free_bytes:deriv1d'), p.bytes),
      ], on='cluster, node, gpu, gpu_uuid, model', rank='-1 * %s' % q.forecast('full:seconds')),
      sortBy='hours left', smallestFirst=true, links=[toNode], noValue='none within 7 days, or samples of 6 hours or less', width=12, height=6),
    p.number('Nodes with GPUs', 'How many nodes have GPUs that an agent watches? Compare with the number of GPU nodes in the cluster; the row Agents lists nodes that are not watched.',
      'count by (cluster) (count by (cluster, node) (%s))' % q.reportedGpus()),
    p.number('GPUs', 'How many GPUs do agents watch? GPUs whose memory the driver does not report count here, and in no figure of memory.',
      'count by (cluster) (group by (cluster, node, gpu, gpu_uuid, model) (%s))' % q.reportedGpus()),
    p.number('Memory promised', "How much of the GPUs' memory, as KAI counts it, is promised to pods? Only GPUs whose shares are known count. Red above 101 %: KAI placed more shares than a GPU has memory; see KaishareGPUOverpromised in docs/runbooks.md.",
      q.promisedRatio(), unit=p.ratio, limits=p.redFrom(1.01)),
    p.number('Memory used', "How much of the GPUs' memory is in use, by any process? Far below Memory promised: shares are larger than needed; see the row Waste.",
      q.ratio(q.gpu('used'), q.gpu('total')), unit=p.ratio),
    p.number('Room for ${share:text} of a GPU', 'How many more pods with the selected share of one GPU fit? Per GPU, free share divided by the share, rounded down; a share never spans GPUs. An upper limit: quotas of queues, taints, cordoned nodes, CPU and memory of the nodes, and pending pods are not considered. '
      + countedAsFree
      + ' Orange at 0: nothing fits.',
      q.room('$share'), limits=p.orangeBelow(1)),
    p.number('Fragmentation for ${share:text}', 'Which part of the free share lies on GPUs with too little left for one pod of the selected share? Orange from 30 %: much is free and few such pods fit. Smaller sizes can use the rest.',
      q.fragmentation('$share'), unit=p.ratio, limits=p.orangeFrom(0.3), noValue='no free share, or unknown'),
    p.number('GPUs saved by sharing', 'How many more GPUs would the selected pods take now, if each had whole ones? A whole GPU for each pod on each GPU, less what the pods are promised; the row GPU-hours has the history.',
      q.savedGpus(selected)),
    p.number('Pods waiting for KAI', "How many pods ask for KAI's scheduler and are on no node? Orange: the row Pending pods shows how long, in which namespaces and queues.",
      q.knownOrZero('count by (cluster) (%s)' % waiting, 'count by (cluster, uid) (%s)' % ofKai),
      limits=p.orangeFrom(1), noValue='no kube-state-metrics'),
    p.number('Nodes with attribution problems', 'On how many nodes are verdicts suspended, fully or for some pods? Red: the row Agents names the problems; docs/metrics.md explains each.',
      q.knownOrZero('count by (cluster) (count by (cluster, instance) (kaishare_agent_attribution_problem{cluster=~"$cluster", reason!~"reservation-.+"} == 1))', 'kaishare_agent_attribution_ok{cluster=~"$cluster"}'),
      limits=p.redFrom(1)),
    p.number('Agents that do not answer', 'How many agents did Prometheus fail to scrape? unknown: Prometheus has no target whose job matches $agent_job. Red: see KaishareAgentDown in docs/runbooks.md.',
      q.knownOrZero('count by (cluster) (%s == 0)' % q.agentUp, q.agentUp), limits=p.redFrom(1)),
    p.number('GPUs without a known free share', 'On how many GPUs are the promised shares or the memory unknown? The agent there has not listed the pods yet, or the driver does not report the memory. Such GPUs are missing in all figures of capacity. Orange: see the row Agents.',
      q.knownOrZero('count by (cluster) (group by (cluster, node, gpu, gpu_uuid, model) (%s) unless (%s and %s))' % [q.reportedGpus(), q.gpu('total'), q.gpu('promised')], q.reportedGpus()),
      limits=p.orangeFrom(1)),
    p.number('Webhook replicas that answer', 'How many replicas of the webhook does Prometheus reach? Red at 0: new pods are probably admitted without a share. The dashboard Webhook has the details.',
      'sum by (cluster) (%s)' % q.webhookUp, limits=p.redBelow(1)),
    p.lines('Memory of all GPUs', 'How do total, promised and used memory develop? Promised above total: KAI placed too much. Used far below promised: shares are larger than needed. GPUs whose figure is unknown are left out of its sum.',
      [
        ['total {{cluster}}', 'sum by (cluster) (%s)' % q.gpu('total')],
        ['promised {{cluster}}', 'sum by (cluster) (%s)' % q.gpu('promised')],
        ['used {{cluster}}', 'sum by (cluster) (%s)' % q.gpu('used')],
      ], unit=p.bytes),
    p.lines('Where the used memory is', 'Where is the used memory: in pods, in processes of the hosts, of pods that are gone, or in no process? Sums of the known figures: pods and GPUs whose figure is unknown are left out.',
      [
        ['pods {{cluster}}', 'sum by (cluster) (%s)' % q.used(q.cluster)],
        ['hosts {{cluster}}', 'sum by (cluster) (%s)' % q.gpu('host')],
        ['ended pods {{cluster}}', 'sum by (cluster) (%s)' % q.gpu('ended_pods')],
        ['no process {{cluster}}', 'sum by (cluster) (%s)' % q.gpu('unattributed')],
      ], unit=p.bytes, stacked=true),
    p.rows('Alerts', 'Which alerts of kaishare are pending or firing? Each has a section in docs/runbooks.md; the column runbook links to it if the variable runbooks is set.',
      alertLabels + ', runbook', [p.column('active', p.withRunbook('sum by (%s) (ALERTS{cluster=~"$cluster", alertname=~"Kaishare.+"})' % alertLabels))],
      links=[p.toRunbook, toNode, p.toNamespace()], noValue='none', height=6),
  ];

local risk = [
  pods.atRisk(q.cluster, podLabels, [toNode]),
  pods.neighbours(q.cluster, podLabels, [toNode]),
  p.rows('GPUs with the least free memory', 'Which GPUs have the least memory left, for any process? A full GPU is no fault by itself: pods may use all that they were promised. Orange: less than 1 GiB free.',
    'cluster, node, gpu, model', p.largest(20, [
      p.column('free', q.free(), p.bytes, limits=p.orangeBelow(1 << 30)),
      p.column('used', '%s / %s' % [q.gpu('used'), q.gpu('total')], p.ratio),
      p.column('promised', q.promisedPart(), p.ratio),
      p.column('at risk', q.atRisk(), p.bytes),
    ], on='cluster, node, gpu, gpu_uuid, model', rank='-1 * %s' % q.free()),
    sortBy='free', smallestFirst=true, links=[toNode], width=14),
];

local capacity =
  local pods = 'topk by (cluster, uid) (1, kaishare_pod_info{cluster=~"$cluster", size!=""})';
  local ofSize = '%s * on (cluster, uid) group_left (size) %s' % [q.shareHundredths(q.cluster), pods];
  [
    p.bars('More pods that fit, by share of one GPU', 'How many more pods of each share fit, if all new pods have that share? Not a sum: the bars share the same free capacity. Quotas, taints, other resources and pending pods are not considered. '
      + countedAsFree,
      [['%s of a GPU {{cluster}}' % (hundredths / 100), q.room(hundredths)] for hundredths in [10, 20, 25, 50, 100]],
      width=8),
    p.rows('GPUs by free share', 'Where is free share? Total minus promised, in hundredths of the memory that KAI counts. Memory in use plays no part. GPUs with pods on MIG devices are left out. '
      + countedAsFree,
      'cluster, node, gpu, model', p.largest(100, [p.column('free share', '%s / 100' % q.freeHundredths(), p.ratio)]), sortBy='free share', links=[toNode], width=8),
    p.rows('Sizes in use', 'Which named sizes do running pods have, and which share is that on each model of GPU? Two different shares: namespaces define the size differently, or as memory.',
      'cluster, size, model', p.largest(50, [
        p.column('shares', 'count by (cluster, size, model) (%s)' % ofSize),
        p.column('smallest share', 'min by (cluster, size, model) (%s) / 100' % ofSize, p.ratio),
        p.column('largest share', 'max by (cluster, size, model) (%s) / 100' % ofSize, p.ratio),
      ], on='cluster, size, model'), sortBy='shares', noValue='no pod has a named size, or unknown', width=8),
    p.forEach('size', '{{cluster}} {{model}}', p.number('More pods of size $size', 'How many more pods of this size fit, by model of GPU? Counted with the largest share of the size, and only on models on which such a pod runs now: its share of other models is unknown. A pod on several GPUs takes one for each. Orange at 0: nothing fits.',
      q.roomOfSize(), limits=p.orangeBelow(1), noValue='no pod of this size runs, or unknown')),
    p.lines('Free share over time, in GPUs', 'Does the fleet run full? The sum of the free shares, in GPUs, and the part of it on GPUs with less than the selected share.',
      [
        ['free {{cluster}}', 'sum by (cluster) (%s) / 100' % q.freeHundredths()],
        ['in pieces below ${share:text} {{cluster}}', '(%s) / 100' % q.freeInSmallPieces('$share')],
      ], width=24),
  ];

local waste =
  local utilization = q.peak('kaishare_pod_gpu_utilization_ratio', selected);
  local busiest = '(max by (cluster, uid) (%s) and on (cluster, uid) %s)'
                  % [utilization, q.judged(utilization, selected, 'kaishare_pod_gpu_utilization_ratio')];
  local recorded = 'namespace:kaishare_pod_gpu_memory_used_share:ratio{cluster=~"$cluster"}';
  [
    p.number('Unused for 7 days', 'How much promised memory has no sample of the last 7 days shown in use? Only pods that are 7 days old, and whose use was known for 90 % of that time, so that no pod is blamed for a gap. unknown: no pod is that old. Orange: the table names the pods; smaller shares would free that memory.',
      'sum by (cluster) %s' % q.judged(q.unused(selected), selected),
      unit=p.bytes, limits=p.orangeFrom(1 << 30), noValue='no pod is 7 days old, or unknown', width=8),
    p.number('Longest history', 'How long at least does Prometheus know the oldest pod? In steps: 7 days, 3 days, 1 day, 6 hours, 1 hour, less. Below 7 days, nothing can be called unused for 7 days.',
      'max by (cluster) (%s)' % q.seen(selected), unit=p.seconds, width=8),
    p.number('Idle pods', 'How many pods that are 7 days old ran no kernel in that time? Only pods whose utilisation the driver reported for 90 % of it. Orange: their GPU share could go to others.',
      q.knownOrZero('count by (cluster) (count by (cluster, uid) (%s == 0))' % busiest, busiest),
      limits=p.orangeFrom(1), noValue='no pod is 7 days old, or unknown', width=8),
    p.rows('Promised and never used', 'Which pods could have a smaller share? Unused is the share minus the highest use in 7 days. Trust a row as far as it was seen: for at least that long, with the use known in that part of the samples. Hours without an agent have no samples. Empty utilisation: the driver does not report it.',
      podLabels, p.largest(50, [
        p.column('unused', q.unused(selected), p.bytes),
        p.column('share', q.share(selected), p.bytes),
        p.column('highest use', q.ofCurrentPods(q.peakUsed(selected), selected), p.bytes),
        p.column('seen for at least', q.ofCurrentPods(q.seen(selected), selected), p.seconds),
        p.column('use known', q.ofCurrentPods(q.knownPart(selected), selected), p.ratio),
        p.column('highest utilisation', q.ofCurrentPods(utilization, selected), p.ratio),
      ]), sortBy='unused', links=[p.toNamespace(), toNode], height=10),
    p.rows("Highest use of each namespace's shares in 7 days", 'Which namespaces never need what they are promised, also where pods live shorter than 7 days? From the recorded ratio of used memory to shares, over pods of which both are known.',
      'cluster, namespace', [
        p.column('highest use of shares', 'max by (cluster, namespace) (max_over_time(%s[7d])) and on (cluster, namespace) %s' % [recorded, recorded], p.ratio),
        p.column('use now', 'max by (cluster, namespace) (%s)' % recorded, p.ratio),
        p.column('seen for at least', q.seenSeconds(recorded, 'cluster, namespace'), p.seconds),
      ], sortBy='seen for at least', links=[p.toNamespace()]),
  ];

// GPU-hours of the selected time, as `kaishare report` counts them: sums of usage:kaishare_…:sum15m.
local gpuHours =
  local where = q.ofAgents(selected);
  local hours(figure, by) = 'sum by (%s) (sum_over_time(usage:kaishare_%s:sum15m{%s}[$__range]))' % [by, figure, where];
  local saved(by) = '%s - %s' % [hours('gpu_hours_whole', by), hours('gpu_hours_promised', by)];
  // The hours from the first to the last record of each pod, also over gaps of more than a day.
  local expected(by) =
    local seen = 'pod:kaishare_gpu_seen:max15m{%s}[$__range]' % where;
    local span = 'sum by (%s) (max_over_time(%s) - min_over_time(%s)) / 3600' % [by, seen, seen];
    '(%s >= %s or %s or %s)' % [hours('gpu_hours_expected', by), span, span, hours('gpu_hours_expected', by)];
  local useKnown(by) = '%s / %s' % [hours('gpu_hours_used_known', by), expected(by)];
  local activityKnown(by) = '%s / %s' % [hours('gpu_hours_active_known', by), expected(by)];
  // A record of 15 minutes in GPUs; the last one counts for 20 minutes.
  local gpus(figure) = '4 * sum by (cluster) (last_over_time(usage:kaishare_gpu_hours_%s:sum15m{%s}[20m]))' % [figure, where];
  local team = 'cluster, namespace, vcluster, virtual_namespace, queue';
  [
    p.number('GPU-hours promised', 'How many GPU-hours did pods have? Shares as KAI counts them, and whole GPUs as 1. Recorded every 15 minutes.',
      hours('gpu_hours_promised', 'cluster')),
    p.number('GPU-hours used', 'How many GPU-hours of memory were in use? Far below promised: shares are larger than needed. Time in which the use was unknown is left out.',
      hours('gpu_hours_used', 'cluster')),
    p.number('GPU-hours active', "For how many GPU-hours did kernels run, by the driver's utilisation?",
      hours('gpu_hours_active', 'cluster')),
    p.number('GPU-hours idle', 'For how many of the promised GPU-hours did no kernel of the pod run? Time without a known utilisation is left out.',
      hours('gpu_hours_idle', 'cluster')),
    p.number('GPU-hours saved', 'How many more GPU-hours would the same pods have taken with whole GPUs?',
      saved('cluster')),
    p.number('Time with known use', 'In which part of their time was the use of the pods known? Orange, below 90 %: the hours used are too few; agents or Prometheus did not run, or see the row Agents.',
      useKnown('cluster'), unit=p.ratio, limits=p.orangeBelow(0.9)),
    p.rows('GPU-hours by team', 'Which team had how much, used it, and left it idle? over: hours of pods above their shares. use known, or activity known for active and idle, in orange: below 90 %. kaishare report has the same figures, with prices.',
      team, [
        p.column('promised', onHost(hours('gpu_hours_promised', team))),
        p.column('used', onHost(hours('gpu_hours_used', team))),
        p.column('active', onHost(hours('gpu_hours_active', team))),
        p.column('idle', onHost(hours('gpu_hours_idle', team))),
        p.column('over', onHost(hours('pod_hours_over', team))),
        p.column('saved', onHost(saved(team))),
        p.column('use known', onHost(useKnown(team)), p.ratio, limits=p.orangeBelow(0.9)),
        p.column('activity known', onHost(activityKnown(team)), p.ratio, limits=p.orangeBelow(0.9)),
      ], sortBy='promised', height=10),
    p.lines('GPUs promised, and as whole GPUs', 'How many GPUs did sharing save, and when? The distance of the two lines. Of pods, recorded every 15 minutes.',
      [
        ['promised {{cluster}}', gpus('promised')],
        ['as whole GPUs {{cluster}}', gpus('whole')],
      ], width=24),
  ];

local flags =
  local raised = 'kaishare_agent_flag_transitions_total{cluster=~"$cluster", change="raised"}';
  local workload = 'cluster, namespace, vcluster, virtual_namespace, workload_kind, workload';
  [
    p.bars('Flagged now, by reason', 'For which reasons are pods flagged? A pod with the flag on two GPUs counts twice. A reason without a bar is evaluated for no pod. Red: the table names the pods.',
      [['{{reason}} {{cluster}}', 'sum by (cluster, reason) (%s)' % q.flagged(selected)]], limits=p.redFrom(1), width=12),
    p.lines('Raised in the hour before', "When did agents flag pods, and why? Counts flags that are already cleared, unlike the other panels, and flags that an agent raises again after a restart. Not by pod: the agents' logs name the pods.",
      [['{{reason}} {{cluster}}', 'round(sum by (cluster, reason) (increase(%s[1h])))' % raised]], width=12),
    p.rows('Flagged pods and their reasons', 'Which pods are flagged now? docs/flags.md has the reasons, docs/runbooks.md what to do about each.',
      podLabels + ', reason', [p.column('flagged', '%s == 1' % q.flagged(selected))], links=[p.toNamespace(), toNode]),
    p.rows('Time over the share in the selected time', 'Which pods exceed their shares often, also too briefly for a flag? Pods that have ended since are listed, too.',
      podLabels, p.largest(20, [p.column('time over share', '%s > 0' % q.timeOverShare(selected), p.seconds)]),
      sortBy='time over share', links=[p.toNamespace(), toNode], width=12),
    p.rows('Time over the share in the last hour, by workload', 'Whose pods exceed their shares one after the other, each too briefly for a flag? Divide by pods at a time: more than 12 minutes raise the alert KaishareWorkloadOverShare. A row without a name has pods without a controller. Pods that have ended count, too. Needs the recorded figures.',
      workload, p.largest(20, [
        p.column('time over share', 'max by (%s) (workload:kaishare_pod_over_share_seconds:increase1h{%s})' % [workload, q.pods], p.seconds),
        p.column('pods at a time', 'max by (%s) (avg_over_time(workload:kaishare_pods_judged:count{%s}[1h]))' % [workload, q.pods]),
      ], on=workload),
      sortBy='time over share', links=[p.toNamespace()], width=14),
    p.rows('Time over the share in the last hour, by namespace', 'In which namespaces do pods exceed their shares, whatever their workloads are called? The sum over all pods. Needs the recorded figures.',
      'cluster, namespace', p.largest(20, [
        p.column('time over share', 'max by (cluster, namespace) (namespace:kaishare_pod_over_share_seconds:increase1h{cluster=~"$cluster"})', p.seconds),
      ], on='cluster, namespace'), sortBy='time over share', links=[p.toNamespace()], width=10),
    p.rows('Evictions since the agents started', 'What did the agents decide about pods whose namespaces ask for eviction? docs/flags.md explains each result. Empty: eviction is off, or no pod was due.',
      'cluster, result', [p.column('decisions', 'sum by (cluster, result) (kaishare_agent_evictions_total{cluster=~"$cluster"})')],
      sortBy='decisions', noValue='none, or eviction is off', width=12),
  ];

local nodes =
  local flags = 'kaishare_pod_flagged{cluster=~"$cluster"}';
  local flaggedPods = 'count by (cluster, node) (count by (cluster, node, uid) (%s == 1))' % flags;
  [
    p.rows('Nodes', "Which nodes are full, and which have flags? Promised in red: more than the GPUs' memory. An empty cell is unknown. Click a node for its dashboard.",
      'cluster, node', [
        p.column('GPUs', 'count by (cluster, node) (group by (cluster, node, gpu, gpu_uuid, model) (%s))' % q.reportedGpus()),
        p.column('total', 'sum by (cluster, node) (%s)' % q.gpu('total'), p.bytes),
        p.column('promised', q.promisedRatio('cluster, node'), p.ratio, limits=p.redFrom(1.01)),
        p.column('used', q.ratio(q.gpu('used'), q.gpu('total'), 'cluster, node'), p.ratio),
        p.column("hosts' processes", 'sum by (cluster, node) (%s)' % q.gpu('host'), p.bytes),
        p.column('flagged pods', q.knownOrZero(flaggedPods, flags, 'cluster, node'), limits=p.redFrom(1)),
      ], sortBy='promised', links=[toNode], height=10),
    p.lines('Utilisation of GPUs by dcgm-exporter, mean of a node', 'Do the GPUs compute, whatever pods hold? Needs dcgm-exporter and the recorded figure gpu:dcgm_utilization:ratio.',
      [['{{cluster}} {{node}}', 'avg by (cluster, node) (gpu:dcgm_utilization:ratio * on (cluster, gpu_uuid) group_left (node) group by (cluster, gpu_uuid, node) (%s))' % q.reportedGpus()]],
      unit=p.ratio, width=24),
  ];

local queues =
  local ofQueue(figure) = onHost(
    'max by (cluster, vcluster, queue) (queue:%s{cluster=~"$cluster", vcluster=~"$origin", vcluster=~"$vcluster", queue=~"$queue"})' % figure
  );
  // Pods whose shares have a source.
  local podsOf(source) =
    'count by (cluster, namespace) (count by (cluster, namespace, uid) (kaishare_pod_gpu_memory_share_bytes{%s, %s}))' % [selected, source];
  local shared = podsOf('source!="whole-gpu"');
  local whole = podsOf('source="whole-gpu"');
  [
    p.rows('Pods by used memory of their share', 'Which pods need more than they have, or much less? Use of share in red: above the share by more than 5 %. Flagged is empty while the pod is not evaluated. Utilisation is empty where the driver does not report it, used where it is unknown.',
      podLabels, p.largest(50, pods.columns(selected, hasTimeOver=false), rank=q.useOfShare(selected)),
      sortBy='use of share', links=[p.toNamespace(), toNode], height=10),
    p.rows("Queues, beside KAI's figures", "Do queues use what KAI allocated to them? In GPUs. Deserved and allocated are KAI's, from its metrics; a queue without a quota has no deserved. Needs the recorded figures. A KAI on the host counts the pods of all vClusters in one row.",
      'cluster, vcluster, queue', [
        p.column('deserved', ofQueue('kai_queue_deserved_gpus:max')),
        p.column('allocated', ofQueue('kai_queue_allocated_gpus:max')),
        p.column('promised', ofQueue('kaishare_gpus_promised:sum')),
        p.column('used', ofQueue('kaishare_gpus_used:sum')),
        p.column('used of allocated', ofQueue('kaishare_gpus_used_allocated:ratio'), p.ratio),
      ], sortBy='promised', width=12),
    p.rows('Namespaces', 'Which namespaces hold how much? Use of shares counts pods of which used memory and share are known; red: above 105 %. Click a namespace for its dashboard.',
      'cluster, namespace', p.largest(50, [
        p.column('share', 'sum by (cluster, namespace) (%s)' % q.share(selected), p.bytes),
        p.column('used', 'sum by (cluster, namespace) (%s)' % q.used(selected), p.bytes),
        p.column('use of shares', q.ratio(q.used(selected), q.share(selected), 'cluster, namespace'), p.ratio, limits=p.redFrom(1.05)),
      ], on='cluster, namespace'), sortBy='share', links=[p.toNamespace()], width=12),
    p.rows('Shares and whole GPUs, by namespace', 'Which namespaces share GPUs, and which still take whole ones? Pods, whether their authors or the webhook asked for the share: no metric tells the two apart by namespace. saved: GPUs that whole ones would take in addition. A whole GPU counts once its pod uses it. Click a namespace for its dashboard.',
      'cluster, namespace', p.largest(50, [
        p.column('pods with a share', shared),
        p.column('pods with whole GPUs', whole),
        p.column('saved', q.savedGpus(selected, 'cluster, namespace')),
      ], on='cluster, namespace', rank='(%s or 0 * %s)' % [shared, whole]), sortBy='pods with a share', links=[p.toNamespace()]),
    p.lines('Used, by queue', "Which queues' pods hold memory?",
      [p.by('sum', 'cluster, vcluster, queue', q.used(selected))], unit=p.bytes, width=8),
    p.lines('Promised, by queue', "To which queues' pods is memory promised?",
      [p.by('sum', 'cluster, vcluster, queue', q.share(selected))], unit=p.bytes, width=8),
    p.lines("Utilisation, mean of a queue's pods", 'Do queues compute with what they hold? Mean over the pods whose utilisation the driver reports; others are left out.',
      [p.by('avg', 'cluster, vcluster, queue', q.utilization(selected))], unit=p.ratio, width=8),
  ];

local pending =
  local created = 'max by (cluster, uid) (kube_pod_created{cluster=~"$cluster"})';
  local queueLabels = 'max by (cluster, uid, queue) (label_replace(kube_pod_labels{cluster=~"$cluster"}, "queue", "$1", "label_kai_scheduler_queue", "(.+)"))';
  // Adds the queue to a figure of pods, where kube-state-metrics knows the pod's labels.
  local withQueue(pods) =
    '((%s) * on (cluster, uid) group_left (queue) (0 * %s + 1) or (%s) unless on (cluster, uid) %s)' % [pods, queueLabels, pods, queueLabels];
  local wait = withQueue('(time() - %s) * on (cluster, uid) group_right () %s' % [created, waiting]);
  local lately = 'max by (cluster, uid) (%s > time() - 3600)' % scheduled;
  local waited = withQueue('%s * on (cluster, uid) group_left () (%s - %s)' % [ofKai, lately, created]);
  local latency = 'kai_task_scheduling_latency_milliseconds';
  [
    p.rows('Pods waiting for KAI, by namespace and queue', 'Who waits for a place, and for how long? From the creation of the pods on. The columns of the last hour are about pods that got a node in it and still exist. queue is empty unless kube-state-metrics runs with --metric-labels-allowlist=pods=[kai.scheduler/queue]. Needs kube-state-metrics 2.11 or later; kaishare why names the cause for one pod.',
      'cluster, namespace, queue', [
        p.column('longest wait', 'max by (cluster, namespace, queue) (%s)' % wait, p.seconds),
        p.column('waiting', 'count by (cluster, namespace, queue) (%s)' % wait),
        p.column('placed in the last hour', 'count by (cluster, namespace, queue) (%s)' % waited),
        p.column('their mean wait', 'avg by (cluster, namespace, queue) (%s)' % waited, p.seconds),
        p.column('their longest wait', 'max by (cluster, namespace, queue) (%s)' % waited, p.seconds),
      ], sortBy='longest wait', links=[p.toNamespace()], noValue='none, or kube-state-metrics is not scraped'),
    p.lines('Pods waiting for KAI over time', 'When did pods pile up? Needs kube-state-metrics.',
      [['{{cluster}}', 'count by (cluster) (%s)' % waiting]], width=8),
    p.lines('Mean wait of placed pods, by KAI', "How long did the pods wait that KAI placed at each time, from their creation to KAI's decision? Of all queues: KAI's figure has no label. Its largest bucket is 2.56 s, so there is no quantile.",
      [['{{cluster}} {{vcluster}}', 'sum by (cluster, vcluster) (%s) / 1000 / (sum by (cluster, vcluster) (%s) > 0)' % [q.rate('%s_sum' % latency), q.rate('%s_count' % latency)]]],
      unit=p.seconds, width=8),
    p.lines('Pods placed by KAI, in a minute', "Does KAI place pods at all? By KAI's own count.",
      [['{{cluster}} {{vcluster}}', '60 * sum by (cluster, vcluster) (%s)' % q.rate('%s_count' % latency)]], unit=p.count, width=8),
  ];

local agents =
  local watched = q.reportedGpus();
  // The resources of the alert KaishareNodeUnwatched: whole GPUs, time slices and MIG devices.
  local allocatable = 'kube_node_status_allocatable{cluster=~"$cluster", resource=~"nvidia_com_(gpu|gpu_shared|mig_.+)"}';
  local info = 'kaishare_build_info{cluster=~"$cluster", component="agent"}';
  [
    p.rows('Agents', "Which agents run, in which version, and which do not answer? answers in red at 0: see KaishareAgentDown in docs/runbooks.md. The link opens the agent's page, if the browser reaches the pod network and the network policy admits it; else use kubectl port-forward.",
      'cluster, instance, namespace, pod, node', [p.column('answers', 'max by (cluster, instance, namespace, pod, node) (%s)' % q.agentUp, limits=p.redBelow(1))],
      sortBy='answers', smallestFirst=true, links=[p.toAgentPage, toNode], width=12),
    p.rows('Attribution problems', 'Why are verdicts suspended, and where? docs/metrics.md explains each reason. Without a GPU the problem is one of the whole node. The two reasons that begin with reservation suspend nothing.',
      'cluster, instance, node, reason, gpu_uuid', [
        p.column('problem', 'max by (cluster, instance, node, reason, gpu_uuid) (kaishare_agent_attribution_problem{cluster=~"$cluster"})'),
      ], links=[p.toAgentPage, toNode], width=12),
    p.rows('Nodes that no agent watches any more', 'Which nodes had GPUs in the last 6 hours and have none now? Their agent is gone, does not answer, or lost its driver; see KaishareNodeUnwatched in docs/runbooks.md. A node that left the cluster is listed too.',
      'cluster, node', [
        p.column('GPUs it had', 'count by (cluster, node) (group by (cluster, node, gpu, gpu_uuid, model) (%s) unless on (cluster, node) %s)' % [q.onceReportedGpus('6h'), watched]),
      ], links=[toNode], width=8),
    p.rows('Nodes with GPUs and without an agent', 'Which nodes offer GPUs, time slices or MIG devices and have no agent that reports GPUs? Needs kube-state-metrics; without it the table is empty.',
      'cluster, node', [
        p.column('devices', 'sum by (cluster, node) (max by (cluster, node, resource) (%s) > 0) unless on (cluster, node) %s' % [allocatable, watched]),
      ], sortBy='devices', noValue='none, or kube-state-metrics is missing', width=8),
    p.rows('Versions', 'Do all agents and webhooks run the same version, and which drivers are there? simulated is true for synthetic figures.',
      'cluster, component, version, driver, simulated', [p.column('instances', 'count by (cluster, component, version, driver, simulated) (kaishare_build_info{cluster=~"$cluster"})')],
      width=8),
    p.lines('Age of the last good sample', 'Do the agents get figures from the driver? An age that grows: the driver does not answer; see KaishareAgentBlind in docs/runbooks.md.',
      [['{{cluster}} {{instance}}', 'max by (cluster, instance) (time() - kaishare_agent_last_sample_timestamp_seconds{cluster=~"$cluster"})']],
      unit=p.seconds, width=8),
    p.lines('Failed driver calls', 'Which calls of the driver fail, and with which error? docs/runbooks.md has the errors under KaishareAgentBlind and KaishareAgentPartlyBlind. No line: none has failed since the agent started.',
      [p.by('sum', 'cluster, instance, call, error', q.rate('kaishare_agent_nvml_errors_total'))],
      unit=p.perSecond, width=8),
    p.lines('Events about pods', 'Do owners of pods get the Events about flags? dropped and failed: see KaishareEventsLost in docs/runbooks.md. No line: no Event has been due.',
      [['{{result}} {{cluster}}', 'sum by (cluster, result) (%s)' % q.rate('kaishare_agent_events_total')]], unit=p.perSecond, width=8),
  ];

p.dashboard(
  'fleet', 'Fleet',
  'GPU memory of all nodes: promised, used, flagged, free for more pods, and never used.',
  variables=[
    p.datasource, p.cluster, p.origin, p.vcluster(),
    p.several('queue', 'Queue', 'Queue of the pods, as the agent first saw it.', 'label_values(kaishare_pod_info{%s}, queue)' % q.pods),
    p.choice(
      'share', 'Share of a GPU', 'Size of the pods for which free capacity and fragmentation are shown.',
      [['%.2f' % (hundredths / 100), '%d' % hundredths] for hundredths in [5, 10, 20, 25, 30, 50, 75, 100]],
      default=3
    ),
    p.some(
      'size', 'Size', 'Named sizes (kaishare.dev/size) for which the row Capacity shows the room.',
      'label_values(kaishare_pod_info{cluster=~"$cluster", size!=""}, size)'
    ),
    p.agentScheme, p.agentJob, p.webhookJob, p.kaiScheduler, p.runbooks,
  ],
  annotations=[p.flagsRaised(), p.evictions, p.versions('agent')],
  overview=overview,
  sections=[
    p.section('At risk: who is over, who is hit, and the fullest GPUs', risk),
    p.section('Capacity: how many pods still fit', capacity),
    p.section('Waste: promised and not used for 7 days (reads 7 days of samples)', waste),
    p.section('GPU-hours in the selected time, by team', gpuHours),
    p.section('Flags', flags),
    p.section('Nodes and GPUs', nodes),
    p.section('Pods, queues and namespaces', queues),
    p.section('Pending pods and their wait', pending),
    p.section('Agents', agents),
  ],
)
