// PromQL that several dashboards share. Each function returns the text of an expression; `where` is a selector without braces.
//
// - An aggregation keeps `cluster`, and a join matches on it. The label is absent where a Prometheus serves one cluster: the
//   matcher cluster=~"$cluster" selects such series too, because `$cluster` at All is `.*`.
// - `max by` over a GPU or a pod removes the labels of the scraped agent, so that an agent that replaces another doubles nothing.
// - An unknown figure has no series. `knownOrZero` adds 0 only beside a series that proves the figure known.
local cluster = 'cluster=~"$cluster"';
// Figures of a GPU, of which each GPU that an agent reports has one at least.
local reported = ['total', 'promised', 'host'];
{
  local q = self,

  // Selectors. `$origin` is a regular expression for the presence of the label vcluster. Every scraped target can export the
  // names of recorded figures, so `ofAgents` selects those of the agents' job.
  cluster:: cluster,
  pods:: cluster + ', vcluster=~"$origin", vcluster=~"$vcluster"',
  agentUp:: 'up{%s, job=~"$agent_job"}' % cluster,
  webhookUp:: 'up{%s, job=~"$webhook_job"}' % cluster,
  ofAgents(where):: where + ', job=~"$agent_job"',

  gpuLabels:: 'cluster, node, gpu, gpu_uuid, model',
  podLabels:: 'cluster, namespace, pod, uid, vcluster, virtual_namespace, virtual_pod, queue, node, gpu, gpu_uuid',
  podOnGpu:: 'cluster, uid, gpu_uuid',

  rate(metric, where=cluster):: 'rate(%s{%s}[$__rate_interval])' % [metric, where],
  // sum(part) / sum(whole) over the series of which both are known.
  ratio(part, whole, by='cluster')::
    'sum by (%s) ((%s) and (%s)) / sum by (%s) ((%s) and (%s))' % [by, part, whole, by, whole, part],
  // A count that is aggregated by `by`, or 0 where it has no series and `evidence` has one: series that exist if and only if
  // the count is known.
  knownOrZero(count, evidence, by='cluster'):: '(%s) or 0 * count by (%s) (%s)' % [count, by, evidence],
  // The growth of a counter that has no series before its first count. increase() sees neither the first count nor a restart
  // after which the counter reaches its old value. The first count is recent if the same target was scraped a window ago, or if
  // the process is younger than the window. alerts.libsonnet counts in the same way.
  beganOrGrew(metric, where, window, seconds)::
    ('(increase(%(series)s[%(window)s]) > 0'
     + ' or (%(series)s unless %(series)s offset %(window)s %(target)s up{%(cluster)s} offset %(window)s == 1)'
     + ' or (%(series)s %(target)s time() - process_start_time_seconds{%(cluster)s} < %(seconds)s))') % {
      series: '%s{%s}' % [metric, where],
      window: window,
      seconds: seconds,
      target: 'and on (cluster, job, instance)',
      cluster: cluster,
    },

  // GPUs. `figure` is the middle of kaishare_gpu_memory_…_bytes.
  gpu(figure, where=cluster):: 'max by (%s) (kaishare_gpu_memory_%s_bytes{%s})' % [q.gpuLabels, figure, where],
  // The memory that KAI counts: whole hundreds of MiB (kai/share_bytes.py).
  counted(where=cluster):: '(floor(%s / 104857600) * 104857600 > 0)' % q.gpu('total', where),
  // The promised part of the memory that KAI counts. A pod with a whole GPU has it alone: then the total is promised, which is
  // 1. rules.libsonnet counts in the same way.
  promisedPart(where=cluster)::
    local promised = q.gpu('promised', where);
    '(%s / %s <= 1 or %s / %s)' % [promised, q.counted(where), promised, q.gpu('total', where)],
  promisedRatio(by='cluster', where=cluster)::
    q.ratio('%s * %s' % [q.promisedPart(where), q.counted(where)], q.counted(where), by),
  // Every GPU that an agent reports, also GPUs whose memory the driver does not report. The total is absent for GPUs with
  // unified memory, and for those in MIG mode without the right to read it. alerts.libsonnet selects them in the same way.
  reportedSeries(where):: ['kaishare_gpu_memory_%s_bytes{%s}' % [figure, where] for figure in reported],
  reportedGpus(where=cluster):: '(%s)' % std.join(' or ', q.reportedSeries(where)),
  onceReportedGpus(window)::
    std.join(' or ', ['count_over_time(%s[%s])' % [series, window] for series in q.reportedSeries(cluster)]),
  // A selector of the series of reportedGpus, for the values of a variable.
  gpuNames:: '{__name__=~"kaishare_gpu_memory_(%s)_bytes", %s}' % [std.join('|', reported), cluster],

  // Pods, one series for each pod and GPU.
  pod(metric, where=q.pods):: 'max by (%s) (%s{%s})' % [q.podLabels, metric, where],
  used(where=q.pods):: q.pod('kaishare_pod_gpu_memory_used_bytes', where),
  share(where=q.pods):: q.pod('kaishare_pod_gpu_memory_share_bytes', where),
  utilization(where=q.pods):: q.pod('kaishare_pod_gpu_utilization_ratio', where),
  // An agent that replaces another counts from 0 under its own instance: the pod's time is the sum of both.
  timeOverShare(where=q.pods)::
    'sum by (%s) (max by (instance, %s) (increase(kaishare_pod_over_share_seconds_total{%s}[$__range])))'
    % [q.podLabels, q.podLabels, where],
  // 1 or 0 for each pod, GPU and reason.
  flagged(where=q.pods):: 'max by (%s, reason) (kaishare_pod_flagged{%s})' % [q.podLabels, where],
  flaggedPods(where)::
    local series = 'kaishare_pod_flagged{%s}' % where;
    q.knownOrZero('count by (cluster) (count by (cluster, uid) (%s == 1))' % series, series),
  // The use of each share, and 0 for pods of which only the share or only the use is known. It orders pods, and keeps those
  // with an unknown figure in a table of the largest.
  useOfShare(where):: '(%s / %s or 0 * %s or 0 * %s)' % [q.used(where), q.share(where), q.share(where), q.used(where)],

  // Capacity. KAI counts a fraction in hundredths of a GPU whose memory is rounded down to a multiple of 100 MiB, so this does
  // too: 4 × 0.25 fills a GPU, although the bytes of the shares are less than its memory. 0.01 absorbs the bytes that
  // int(fraction × units) cuts off.
  //
  // The unpromised hundredths of each GPU, without GPUs that have pods on MIG devices. A GPU whose promised memory is unknown
  // has no series.
  freeHundredths(where=cluster)::
    ('(clamp_min(100 - ceil(100 * %s / %s - 0.01), 0)'
     + ' unless on (cluster, node, gpu) kaishare_pod_gpu_memory_used_bytes{%s, gpu_uuid=~"MIG-.+"})')
    % [q.gpu('promised', where), q.counted(where), where],
  // The hundredths of a GPU that each pod's share takes, with the GPU's model.
  shareHundredths(where)::
    ('ceil(100 * max by (cluster, namespace, uid, node, gpu_uuid) (kaishare_pod_gpu_memory_share_bytes{%s})'
     + ' / on (cluster, node, gpu_uuid) group_left (model) %s - 0.01)') % [where, q.counted()],
  // How many more shares of this many hundredths fit; no share spans two GPUs.
  room(hundredths):: 'sum by (cluster) (floor(%s / %s))' % [q.freeHundredths(), hundredths],
  // How many more pods of `$size` fit on GPUs of each model on which such a pod runs, with the largest share of these pods.
  roomOfSize()::
    local pods = 'kaishare_pod_info{%s, size!="", size=~"$size"}' % cluster;
    local size = 'max by (cluster, model) (%s and on (cluster, uid) %s)' % [q.shareHundredths(cluster), pods];
    'sum by (cluster, model) (floor(%s / on (cluster, model) group_left () %s))' % [q.freeHundredths(), size],
  // The free hundredths on GPUs with less than this many.
  freeInSmallPieces(hundredths)::
    'sum by (cluster) (%s < %s) or 0 * sum by (cluster) (%s)' % [q.freeHundredths(), hundredths, q.freeHundredths()],
  fragmentation(hundredths)::
    '(%s) / (sum by (cluster) (%s) > 0)' % [q.freeInSmallPieces(hundredths), q.freeHundredths()],
  // How many more GPUs the pods would take if each had a whole one for each GPU that it is on.
  // usage:kaishare_gpu_hours_whole:sum15m less …_promised:sum15m is the same over time (usage.libsonnet).
  savedGpus(where, by='cluster')::
    'sum by (%s) (1 - clamp_max(%s, 100) / 100)' % [by, q.shareHundredths(where)],

  // Memory at risk. All pods of a GPU count, whichever the dashboard's variables select, because any of them can be the cause.
  //
  // kube-state-metrics labels a pod's series with namespace, pod, container and uid (its page pod-metrics.md). Joins use uid: a
  // scrape without honor_labels renames the first two, and uid is that of the host's pod for pods of vClusters, too.
  atRisk(where=cluster):: 'max by (%s) (kaishare_gpu_at_risk_bytes{%s})' % [q.gpuLabels, where],
  // rules.libsonnet computes the free memory in the same way.
  free()::
    local rest = '%s - %s' % [q.gpu('total'), q.gpu('used')];
    '(%s - %s or %s)' % [rest, q.gpu('reserved'), rest],
  // What each pod holds above its share of a GPU; a pod without a share there has a share of 0. The agent counts a risk in the
  // same way (docs/metrics.md). On a GPU whose risk is unknown, the share of such a pod can be unknown, too.
  aboveShare(where)::
    '(%s - %s > 0 or %s > 0 unless on (cluster, uid, gpu_uuid) kaishare_pod_gpu_memory_share_bytes{%s})'
    % [q.used(where), q.share(where), q.used(where), where],
  leftOfShare(where):: '(%s - %s > 0)' % [q.share(where), q.used(where)],
  onGpusAtRisk(figure, where):: '(%s and on (cluster, gpu_uuid) kaishare_gpu_at_risk_bytes{%s} > 0)' % [figure, where],
  // 0 for each pod that shared a GPU with an offender, or a GPU at risk, in the last hour. Pods above their shares, now or
  // flagged in that hour, are left out. Pods that have ended are included. The reasons are those of flags for memory that other
  // pods on the GPU may need.
  neighbours(where)::
    ('(0 * max by (%(labels)s) (last_over_time(kaishare_pod_gpu_memory_share_bytes{%(where)s}[1h]))'
     + ' and on (cluster, gpu_uuid) (max_over_time(kaishare_gpu_at_risk_bytes{%(where)s}[1h]) > 0 or %(flags)s)'
     + ' unless on (cluster, uid, gpu_uuid) (%(flags)s or %(above)s))') % {
      labels: q.podLabels,
      where: where,
      flags: 'max_over_time(kaishare_pod_flagged{%s, gpu_uuid!="", reason=~"over-share|limit-bypassed|unassigned-gpu|no-share"}[1h]) == 1' % where,
      above: q.aboveShare(where),
    },
  // The restarts of each pod's containers in the last hour, by `cluster, uid`. A difference needs two samples of each container,
  // where increase() over all containers of a cluster reads an hour of them. The count is unknown for a pod older than an hour
  // whose count an hour ago is unknown.
  restarts()::
    ('sum by (cluster, uid) (%(now)s - %(by)s (%(series)s offset 1h)'
     + ' or %(now)s and on (cluster, uid) kube_pod_created{%(cluster)s} > time() - 3600)') % {
      local series = 'kube_pod_container_status_restarts_total{%s}' % cluster,
      series: series,
      by: 'max by (cluster, uid, container)',
      now: '%s (%s)' % [self.by, series],
      cluster: cluster,
    },
  // The number of each pod's containers whose last run ended for a reason, by `cluster, uid`.
  lastEnded(reason)::
    'count by (cluster, uid) (max by (cluster, uid, container) (kube_pod_container_status_last_terminated_reason{%s, reason="%s"}) == 1)'
    % [cluster, reason],
  // 1 for each pod of phase Failed, which does not restart, by `cluster, uid`.
  failed():: '(max by (cluster, uid) (kube_pod_status_phase{%s, phase="Failed"}) == 1)' % cluster,
  // The restarts of the neighbours that restarted in the last hour, and 0 for those that failed.
  hitNeighbours(where=cluster)::
    '%s + on (cluster, uid) group_left () (%s > 0 or 0 * %s)' % [q.neighbours(where), q.restarts(), q.failed()],
  // gpu:kaishare_gpu_memory_… of each GPU, smallest of the agents that report it.
  forecast(figure):: 'min by (%s) (gpu:kaishare_gpu_memory_%s{%s})' % [q.gpuLabels, figure, q.ofAgents(cluster)],

  // Waste: promised memory that no sample of the last 7 days shows in use. A pod's age is known in steps, from the samples of
  // its share at fixed times ago, because a subquery over 7 days would read a thousand times as much.
  peak(metric, where):: 'max by (cluster, uid, gpu_uuid) (max_over_time(%s{%s}[7d]))' % [metric, where],
  peakUsed(where):: q.peak('kaishare_pod_gpu_memory_used_bytes', where),
  // A figure by pod and GPU with the labels of the pods that have a share now.
  ofCurrentPods(value, where):: '0 * %s + on (cluster, uid, gpu_uuid) group_left () (%s)' % [q.share(where), value],
  // The part of each share that no sample shows in use.
  unused(where)::
    'clamp_min(%s - on (cluster, uid, gpu_uuid) group_left () %s, 0)' % [q.share(where), q.peakUsed(where)],
  // The part of the samples with a share that also have the use.
  knownPart(where)::
    local samples(name) = 'sum by (cluster, uid, gpu_uuid) (count_over_time(kaishare_pod_gpu_memory_%s_bytes{%s}[7d]))' % [name, where];
    'clamp_max(%s / %s, 1)' % [samples('used'), samples('share')],
  // For how long at least a series exists: 7 d, 3 d, 1 d, 6 h, 1 h, or 0 for less than an hour.
  seenSeconds(series, by)::
    local ages = [['7d', 604800], ['3d', 259200], ['1d', 86400], ['6h', 21600], ['1h', 3600]];
    std.join(' or ', ['%s * group by (%s) (%s offset %s)' % [age[1], by, series, age[0]] for age in ages]
                     + ['0 * group by (%s) (%s)' % [by, series]]),
  // For how long at least each pod has had a share on its GPU, in seconds.
  seen(where):: q.seenSeconds('kaishare_pod_gpu_memory_share_bytes{%s}' % where, q.podOnGpu),
  // A figure of the current pods that are 7 days old, with the metric known in 90 % of the hours. The part of the samples would
  // not tell hours in which the agent or Prometheus did not run.
  judged(figure, where, metric='kaishare_pod_gpu_memory_used_bytes')::
    ('(%(figure)s and %(on)s %(series)s and %(on)s %(series)s offset 7d'
     + ' and %(on)s (count_over_time(group by (cluster, uid, gpu_uuid) (%(metric)s{%(where)s})[7d:1h]) >= 0.9 * 168))') % {
      figure: figure,
      on: 'on (cluster, uid, gpu_uuid)',
      series: 'kaishare_pod_gpu_memory_share_bytes{%s}' % where,
      metric: metric,
      where: where,
    },
}
