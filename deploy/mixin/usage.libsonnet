// Recording rules for `kaishare advise` and `kaishare report`.
//
// Records of each pod on each GPU, every minute. Their labels: the cluster's label, job, namespace, pod, uid, gpu_uuid, node,
// queue, vcluster, virtual_namespace, size, workload_kind, workload, model. Labels that do not apply are absent.
//
//   pod:kaishare_gpu_seen:timestamp    Unix time of this evaluation, while a share or the use is known. min_over_time() is
//                                      when the pod was first seen, max_over_time() when it was last seen, count_over_time()
//                                      the number of minutes with data.
//   pod:kaishare_gpu_share:ratio       share, as a part of the memory that KAI counts; a whole GPU is 1
//   pod:kaishare_gpu_promised:ratio    the same as KAI charges it: rounded up to hundredths
//   pod:kaishare_gpu_used:ratio        memory in use at this moment, as a part of the memory that KAI counts
//   pod:kaishare_gpu_used:max1m        the largest sample of the last minute, in the same unit
//   pod:kaishare_gpu_active:ratio      utilisation, from 0 to 1; absent where it is unknown
//   pod:kaishare_gpu_idle:ratio        promised while the utilisation is 0; 0 while it is above 0; absent where it is unknown
//   pod:kaishare_gpu_over:seconds1m    seconds above the share in the last minute, by the agent's counter
//
//   gpu:kaishare_gpu_memory_counted_bytes:max   (rules.libsonnet) the memory of a GPU that KAI counts, with its model
//
//   pod:kaishare_gpu_seen:max15m       every 15 minutes: the last of these timestamps. Over a long time it tells cheaply when a
//                                      pod was first and last seen, however long the agent was away between.
//
// Records of the pods with the same labels (those above without pod, uid and gpu_uuid), every 15 minutes, in hours of these 15
// minutes. Their sums over time are the figures of a report.
//
//   usage:kaishare_gpu_hours_promised:sum15m      GPU-hours promised
//   usage:kaishare_gpu_hours_whole:sum15m         GPU-hours if each of these pods had whole GPUs; less promised: saved
//   usage:kaishare_gpu_hours_used:sum15m          memory in use, in GPU-hours
//   usage:kaishare_gpu_hours_active:sum15m        utilisation, in GPU-hours
//   usage:kaishare_gpu_hours_idle:sum15m          promised while no kernel ran
//   usage:kaishare_pod_hours_over:sum15m          hours of pods above their share, on the GPU where they are most
//   usage:kaishare_gpu_hours_expected:sum15m      time of pods on GPUs, from the first to the last record of each; a gap counts
//                                                 when the pod is seen again, within a day
//   usage:kaishare_gpu_hours_used_known:sum15m    the part of it in which the use was known
//   usage:kaishare_gpu_hours_active_known:sum15m  the part of it in which the utilisation was known
//
// - Only series of the agents' job count, and every record keeps `job`.
// - A pod that several agents or targets report counts once: the largest figure by uid and gpu_uuid.
// - A tenant writes queue, size and workload. They never decide which series match: joins are by uid and gpu_uuid, and topk
//   takes one description.
// - MIG devices and GPUs whose memory is unknown are left out: they have no part of a GPU.
local text = import 'text.libsonnet';

{
  local texts = text.shared($._config),
  local record(name, expr) = { record: name, expr: text.fill(expr, texts) },
  local indented(expr) = std.strReplace(std.rstripChars(expr, '\n'), '\n', '\n  '),

  local onGpu = '${cluster}, job, uid, gpu_uuid',
  local described = 'namespace, pod, node, queue, vcluster, virtual_namespace, size, workload_kind, workload, model',
  local usage = '${cluster}, job, namespace, queue, vcluster, virtual_namespace, workload_kind, workload, size, node, model',

  local once(metric) = 'max by (%s) (%s{${agent}})' % [onGpu, metric],
  local used = 'kaishare_pod_gpu_memory_used_bytes',
  local share = 'kaishare_pod_gpu_memory_share_bytes',
  local utilization = once('kaishare_pod_gpu_utilization_ratio'),
  local counter = 'kaishare_pod_over_share_seconds_total{${agent}}',

  local ofGpu(bytes) = |||
    %s
      / on (${cluster}, job, gpu_uuid) group_left max by (${cluster}, job, gpu_uuid) (${countedTotal})
  ||| % bytes,
  // A whole GPU is a little more than the memory that KAI counts.
  local shareOfGpu = 'clamp_max(\n  %s\n, 1)' % indented(ofGpu(once(share))),
  local promised = 'ceil(100 * %s - 0.01) / 100' % shareOfGpu,

  // Adds the pod's description of the last two minutes. A pod that ended within the last minute has one, too. The newest
  // description has the largest timestamp.
  local ofPod(figure) = |||
    (
      %s
    ) * on (%s) group_left (%s) group by (%s, %s) (
      topk by (%s) (1, last_over_time(pod:kaishare_gpu_seen:timestamp[2m]))
    )
  ||| % [indented(figure), onGpu, described, onGpu, described, onGpu],

  // Prometheus 2 includes both ends of a range. Without the offset, a record at the boundary of two windows would count twice.
  local window = '[15m] offset 1ms',
  local hours(figure) = 'sum by (%s) (sum_over_time(%s%s)) / 60' % [usage, figure, window],
  local known(figure) = 'sum by (%s) (count_over_time(%s%s)) / 60' % [usage, figure, window],

  prometheusRules+:: {
    groups+: [
      {
        name: 'kaishare-usage-pods',
        interval: '1m',
        rules: [
          record('pod:kaishare_gpu_seen:timestamp', |||
            0 * (
              group by (${cluster}, job, uid, gpu_uuid, namespace, pod, node, queue, vcluster, virtual_namespace) (
                topk by (%(onGpu)s) (1, %(share)s{${agent}} or on (%(onGpu)s) %(used)s{${agent}})
              )
              * on (${cluster}, job, gpu_uuid) group_left (model) group by (${cluster}, job, gpu_uuid, model) (
                topk by (${cluster}, job, gpu_uuid) (1, kaishare_gpu_memory_total_bytes{${agent}} or on (${cluster}, job, gpu_uuid) kaishare_gpu_memory_promised_bytes{${agent}})
              )
              * on (${cluster}, job, uid) group_left (size, workload_kind, workload) (
                topk by (${cluster}, job, uid) (1, kaishare_pod_info{${agent}})
              )
            ) + time()
          ||| % { onGpu: onGpu, share: share, used: used }),
          record('pod:kaishare_gpu_share:ratio', ofPod(shareOfGpu)),
          record('pod:kaishare_gpu_promised:ratio', ofPod(promised)),
          record('pod:kaishare_gpu_used:ratio', ofPod(ofGpu(once(used)))),
          // Without samples in the last minute, where scrapes are rarer, the present value counts.
          record('pod:kaishare_gpu_used:max1m', ofPod(ofGpu('max by (%s) (max_over_time(%s{${agent}}[1m]) or %s{${agent}})' % [onGpu, used, used]))),
          record('pod:kaishare_gpu_active:ratio', ofPod(|||
            %s
              and on (${cluster}, job, gpu_uuid) kaishare_gpu_memory_total_bytes{${agent}}
          ||| % utilization)),
          record('pod:kaishare_gpu_idle:ratio', ofPod('%s\n  * on (%s) (%s == bool 0)' % [promised, onGpu, utilization])),
          // The differences to the last value before this minute add up to the counter's growth, however rare scrapes are.
          // 1. The counter grew.
          // 2. The agent started again and counts from 0.
          // 3. The series is new, or was away for more than an hour. Then it may have an old value, so at most a minute counts.
          record('pod:kaishare_gpu_over:seconds1m', ofPod(|||
            max by (%(onGpu)s) (
              last_over_time(%(counter)s[1m]) - last_over_time(%(counter)s[1h] offset 1m) >= 0
              or last_over_time(%(counter)s[1m]) < last_over_time(%(counter)s[1h] offset 1m)
              or clamp_max(last_over_time(%(counter)s[1m]), 60)
            )
          ||| % { onGpu: onGpu, counter: counter })),
        ],
      },
      {
        name: 'kaishare-usage',
        interval: '15m',
        rules: [
          record('usage:kaishare_gpu_hours_promised:sum15m', hours('pod:kaishare_gpu_promised:ratio')),
          record('usage:kaishare_gpu_hours_whole:sum15m', known('pod:kaishare_gpu_promised:ratio')),
          record('usage:kaishare_gpu_hours_used:sum15m', hours('pod:kaishare_gpu_used:ratio')),
          record('usage:kaishare_gpu_hours_used_known:sum15m', known('pod:kaishare_gpu_used:ratio')),
          record('usage:kaishare_gpu_hours_active:sum15m', hours('pod:kaishare_gpu_active:ratio')),
          record('usage:kaishare_gpu_hours_active_known:sum15m', known('pod:kaishare_gpu_active:ratio')),
          record('usage:kaishare_gpu_hours_idle:sum15m', hours('pod:kaishare_gpu_idle:ratio')),
          record('usage:kaishare_pod_hours_over:sum15m', |||
            sum by (%(usage)s) (
              max by (%(usage)s, uid) (sum_over_time(pod:kaishare_gpu_over:seconds1m%(window)s))
            ) / 3600
          ||| % { usage: usage, window: window }),
          record('pod:kaishare_gpu_seen:max15m', 'max_over_time(pod:kaishare_gpu_seen:timestamp%s)' % window),
          // Time since the last record before these 15 minutes, else since the first record.
          record('usage:kaishare_gpu_hours_expected:sum15m', |||
            sum by (%(usage)s) (
              max_over_time(%(seen)s%(window)s) - last_over_time(%(seen)s[1d] offset 15m1ms)
              or max_over_time(%(seen)s%(window)s) - min_over_time(%(seen)s%(window)s) + 60
            ) / 3600
          ||| % { usage: usage, seen: 'pod:kaishare_gpu_seen:timestamp', window: window }),
        ],
      },
    ],
  },
}
