// Recording rules.
//
// - Pods are compared by uid, GPUs by gpu_uuid. The cluster's label counts where several clusters share one Prometheus,
//   and is absent elsewhere.
// - A series that is absent never counts as 0.
// - Only series of the services' jobs count, and records keep `job`: any scraped target can export these names.
// - A pod that several agents or targets report counts once: the largest figure by uid and gpu_uuid.
local text = import 'text.libsonnet';

local windows = ['5m', '30m', '1h', '6h'];
local reportedGpus(form) = std.join(' or ', [form % ('kaishare_gpu_memory_%s_bytes{${agent}}' % figure) for figure in ['total', 'promised', 'host']]);
{
  local texts = text.shared($._config),
  local record(name, expr) = { record: name, expr: text.fill(expr, texts) },

  local onGpu = '${cluster}, job, uid, gpu_uuid',
  local used = 'kaishare_pod_gpu_memory_used_bytes{${agent}}',
  local share = 'kaishare_pod_gpu_memory_share_bytes{${agent}}',
  // One series for each pod and GPU, with its labels. Two agents may know different labels of one pod.
  local once(series) = 'topk by (%s) (1, %s)' % [onGpu, series],
  // Memory in use divided by shares. A pod counts only if both its figures are known.
  local usedOfShare(labels) = |||
    sum by (%(labels)s) (
      %(oneUsed)s and on (%(onGpu)s) %(share)s
    ) / sum by (%(labels)s) (
      %(oneShare)s and on (%(onGpu)s) %(used)s
    )
  ||| % { labels: labels, onGpu: onGpu, used: used, share: share, oneUsed: once(used), oneShare: once(share) },
  // Parts of the memory that KAI counts.
  local perGpu(series) = |||
    %s
      / on (${cluster}, job, gpu_uuid) group_left max by (${cluster}, job, gpu_uuid) (${countedTotal})
  ||| % once(series),
  local indented(expr) = std.strReplace(std.rstripChars(expr, '\n'), '\n', '\n  '),
  local gpusUsed(labels) = 'sum by (%s) (\n  %s\n)' % [labels, indented(perGpu(used))],
  // KAI charges hundredths of a GPU. A whole GPU is a little more than the memory that KAI counts.
  local gpusPromised(labels) = 'sum by (%s) (\n  clamp_max(ceil(100 * %s - 0.01) / 100, 1)\n)' % [labels, indented(perGpu(share))],

  // Adds the workload to a figure of pods. An owner can edit what names the workload, and two agents may describe one pod, so
  // topk takes one description.
  local ofWorkload(figure, info) = |||
    (
      %(figure)s
    ) * on (${cluster}, job, uid) group_left (workload_kind, workload) topk by (${cluster}, job, uid) (1, %(info)s)
  ||| % { figure: indented(figure), info: info },
  local queue = '${cluster}, job, vcluster, queue',
  local namespace = '${cluster}, job, namespace',
  local workloadLabels = '${cluster}, job, namespace, vcluster, virtual_namespace, workload_kind, workload',

  local gpuMax(series) = 'max by (${cluster}, job, node, gpu, gpu_uuid, model) (%s)' % series,

  // Reviews that got no answer of the webhook's, each counted once: shed reviews, and failures by stage. The stage policies
  // also counts failed updates that concern no review. They are rare, and no other series has the pods that mode enforce
  // refuses because their policy is unknown: such a review is answered with HTTP 500 and has no action.
  local failed = |||
    rate(kaishare_webhook_shed_total{${webhook}}[${window}])
      or rate(kaishare_webhook_errors_total{${webhook}, stage=~"patch|mutate|validate-pods|validate-namespaces|timeout|policies|http"}[${window}])
  |||,
  local ours = 'name=~".+\\\\.kaishare\\\\.dev"',
  local slow(labels, histogram, matcher) = |||
    sum by (%(labels)s) (rate(%(histogram)s_count{%(matcher)s}[${window}]))
      - sum by (%(labels)s) (rate(%(histogram)s_bucket{%(matcher)s, le="${fastSeconds}"}[${window}]))
  ||| % { labels: labels, histogram: histogram, matcher: matcher },

  prometheusRules+:: {
    groups+: [
      {
        name: 'kaishare-gpu-figures',
        rules: [
          // What no pod of the API server holds, as far as it is known.
          record('gpu:kaishare_gpu_memory_outside_pods_bytes:sum', 'sum by (${cluster}, job, node, gpu, gpu_uuid, model) (\n  %s\n)' % std.join('\n  or ', [
            'label_replace(clamp_min(%s, 0), "part", "%s", "", "")' % [gpuMax('kaishare_gpu_memory_%s_bytes{${agent}}' % part), part]
            for part in ['unattributed', 'host', 'ended_pods']
          ])),
          record('gpu:kaishare_gpu_memory_counted_bytes:max', gpuMax('${countedTotal}')),
          // A pod with a whole GPU has it alone: then the total is promised, which is 1.
          record('gpu:kaishare_gpu_memory_promised:ratio', |||
            %(promised)s / %(counted)s <= 1
            or %(promised)s / %(total)s
          ||| % {
            promised: gpuMax('kaishare_gpu_memory_promised_bytes{${agent}}'),
            counted: gpuMax('${countedTotal}'),
            total: gpuMax('kaishare_gpu_memory_total_bytes{${agent}}'),
          }),
        ],
      },
      // Nodes with NVIDIA GPUs: 1 while an agent reports a GPU of the node, else 0.
      // 1. Capacity stays while a device plugin restarts. It counts in clusters that have the agent's DaemonSet.
      //    kube-state-metrics replaces characters in names of resources.
      // 2. A node that an agent reported, or that this record had, is remembered as long as kube-state-metrics has the node,
      //    without kube-state-metrics for 6 hours.
      // The agent's total is absent for GPUs with unified memory, and for those in MIG mode without the right to read it.
      {
        name: 'kaishare-nodes',
        interval: '1m',
        rules: [
          record('node:kaishare_watched:bool', |||
            0 * max by (${cluster}, node) (%(now)s) + 1
            or 0 * (
              max by (${cluster}, node) (kube_node_status_capacity{resource=~"nvidia_com_(gpu|gpu_shared|mig_.+)"}) > 0
                and on (${cluster}) kube_daemonset_status_desired_number_scheduled{namespace="${agentNamespace}", daemonset="${agentDaemonSet}"}
              or last_over_time(node:kaishare_watched:bool[1h])
                and on (${cluster}, node) kube_node_info
              or max by (${cluster}, node) (%(lately)s)
                unless on (${cluster}, node) (max_over_time(kube_node_info[6h]) unless on (${cluster}, node) kube_node_info)
            )
          ||| % { now: reportedGpus('%s'), lately: reportedGpus('max_over_time(%s[6h])') }),
        ],
      },
      // When each GPU is full if its free memory falls as it did in the last day. Every two minutes: a regression over a day
      // reads every sample of it. The first record keeps its labels when an agent is replaced, so the day has no seam.
      // 1. The figure needs samples of more than six hours, and a fall in the last three hours, too: a pod that took its
      //    memory hours ago, all at once, would read as a trend for a day.
      // 2. More than a week ahead is no figure: it would be the noise of a GPU on which nothing happens.
      {
        name: 'kaishare-gpu-forecast',
        interval: '2m',
        rules: [
          // Reserved memory is absent where the driver does not report it; used memory contains it there.
          record('gpu:kaishare_gpu_memory_free_bytes:min', |||
            %(total)s - %(used)s - %(reserved)s
            or %(total)s - %(used)s
          ||| % {
            total: gpuMax('kaishare_gpu_memory_total_bytes{${agent}}'),
            used: gpuMax('kaishare_gpu_memory_used_bytes{${agent}}'),
            reserved: gpuMax('kaishare_gpu_memory_reserved_bytes{${agent}}'),
          }),
          record('gpu:kaishare_gpu_memory_free_bytes:deriv1d', |||
            deriv(gpu:kaishare_gpu_memory_free_bytes:min[1d])
              and count_over_time(gpu:kaishare_gpu_memory_free_bytes:min[1d:1h]) > 6
          |||),
          record('gpu:kaishare_gpu_memory_full:seconds', |||
            clamp_min(gpu:kaishare_gpu_memory_free_bytes:min, 0)
              / (-1 * gpu:kaishare_gpu_memory_free_bytes:deriv1d > 0)
              < 7 * 86400
              and deriv(gpu:kaishare_gpu_memory_free_bytes:min[3h]) < 0
          |||),
        ],
      },
      // Over-share by workload and namespace, from the seconds of each minute (usage.libsonnet). A pod on several GPUs counts with
      // the one on which it was over for longest. Pods without a controller are one workload of their namespace.
      {
        name: 'kaishare-over-share',
        rules: [
          record('pod:kaishare_pod_over_share_seconds:increase1h', |||
            max by (%s, node, pod, uid) (
              sum_over_time(pod:kaishare_gpu_over:seconds1m[1h] offset 1ms)
            ) > 0
          ||| % workloadLabels),
          record('workload:kaishare_pod_over_share_seconds:increase1h', 'sum by (%s) (pod:kaishare_pod_over_share_seconds:increase1h)' % workloadLabels),
          record('namespace:kaishare_pod_over_share_seconds:increase1h', 'sum by (${cluster}, job, namespace) (pod:kaishare_pod_over_share_seconds:increase1h)'),
          record('workload:kaishare_pods_judged:count', 'count by (%s) (\n  %s\n)' % [
            workloadLabels,
            std.strReplace(std.rstripChars(ofWorkload('max by (${cluster}, job, namespace, uid, vcluster, virtual_namespace) (kaishare_pod_over_share_seconds_total{${agent}})', 'kaishare_pod_info{${agent}}'), '\n'), '\n', '\n  '),
          ]),
        ],
      },
      // Figures by queue and namespace. Tenants that run KAI inside their vClusters choose names of queues themselves, so a
      // queue is known by `vcluster` and `queue`; `vcluster` is absent for pods of the host.
      {
        name: 'kaishare-figures',
        rules: [
          record('queue:kaishare_pod_gpu_memory_used_bytes:sum', 'sum by (%s) (%s)' % [queue, once(used)]),
          record('queue:kaishare_pod_gpu_memory_share_bytes:sum', 'sum by (%s) (%s)' % [queue, once(share)]),
          record('queue:kaishare_pod_gpu_memory_used_share:ratio', usedOfShare(queue)),
          record('namespace:kaishare_pod_gpu_memory_used_bytes:sum', 'sum by (%s) (%s)' % [namespace, once(used)]),
          record('namespace:kaishare_pod_gpu_memory_share_bytes:sum', 'sum by (%s) (%s)' % [namespace, once(share)]),
          record('namespace:kaishare_pod_gpu_memory_used_share:ratio', usedOfShare(namespace)),
          // Of each pod on each GPU: quantile_over_time() of it is the share that would do.
          record('pod:kaishare_pod_gpu_memory_used_share:ratio', |||
            max by (${cluster}, job, vcluster, queue, namespace, pod, uid, gpu_uuid) (%s)
              / (max by (${cluster}, job, vcluster, queue, namespace, pod, uid, gpu_uuid) (%s) > 0)
          ||| % [used, share]),

          // In GPUs, the unit of KAI's own figures. Not for MIG devices, which are no part of a shared GPU.
          record('queue:kaishare_gpus_promised:sum', gpusPromised(queue)),
          record('queue:kaishare_gpus_used:sum', gpusUsed(queue)),
          record('namespace:kaishare_gpus_promised:sum', gpusPromised(namespace)),
          record('namespace:kaishare_gpus_used:sum', gpusUsed(namespace)),

          // The scrape configuration of a KAI inside a vCluster adds `vcluster` to its series.
          record('queue:kai_queue_allocated_gpus:max', 'max by (${cluster}, vcluster, queue) (label_replace(kai_queue_allocated_gpus, "queue", "$1", "queue_name", "(.+)"))'),
          // KAI writes -1 for a queue without a quota.
          record('queue:kai_queue_deserved_gpus:max', 'max by (${cluster}, vcluster, queue) (label_replace(kai_queue_deserved_gpus >= 0, "queue", "$1", "queue_name", "(.+)"))'),
          // The host's KAI counts a queue's pods of all vClusters together; a KAI inside a vCluster counts its own.
          record('queue:kaishare_gpus_used_allocated:ratio', |||
            sum by (${cluster}, job, queue) (queue:kaishare_gpus_used:sum)
              / on (${cluster}, queue) group_left () (queue:kai_queue_allocated_gpus:max{vcluster=""} > 0)
            or
            queue:kaishare_gpus_used:sum{vcluster!=""}
              / on (${cluster}, vcluster, queue) group_left () (queue:kai_queue_allocated_gpus:max{vcluster!=""} > 0)
          |||),

          // dcgm-exporter's figures under kaishare's label, in base units. Beside a GPU's own it may have series of pods on
          // it, which are not larger, and of MIG instances, with GPU_I_ID.
          record('gpu:dcgm_memory_used_bytes:max', |||
            2^20 * max by (${cluster}, gpu_uuid) (
              label_replace(DCGM_FI_DEV_FB_USED{GPU_I_ID=""}, "gpu_uuid", "$1", "UUID", "(.+)")
            )
          |||),
          record('gpu:dcgm_utilization:ratio', |||
            max by (${cluster}, gpu_uuid) (
              label_replace(DCGM_FI_DEV_GPU_UTIL{GPU_I_ID=""}, "gpu_uuid", "$1", "UUID", "(.+)")
            ) / 100
          |||),
        ],
      },
      // Rates for the objective of the webhook. The webhook counts what it received. The API server's series are absent
      // where it is not scraped; they also count reviews that never reached the webhook. The API server observes the
      // duration of every call, failed or not, so the histogram's count is the number of calls (Kubernetes,
      // k8s.io/apiserver/pkg/admission/plugin/webhook/mutating/dispatcher.go).
      {
        name: 'kaishare-slo',
        rules: std.flattenArrays([
          local windowed(name, expr) = record(name + ':rate' + window, std.strReplace(expr, '${window}', window));
          [
            windowed('job:kaishare_webhook_reviews', |||
              sum by (${cluster}, namespace, job) (
                rate(kaishare_webhook_requests_total{${webhook}, action!="error"}[${window}])
                or %s
              )
            ||| % std.rstripChars(failed, '\n')),
            windowed('job:kaishare_webhook_reviews_failed', 'sum by (${cluster}, namespace, job) (\n  %s\n)' % std.rstripChars(failed, '\n')),
            windowed('job:kaishare_webhook_reviews_slow', slow('${cluster}, namespace, job', 'kaishare_webhook_request_duration_seconds', '${webhook}')),
            windowed('name:kaishare_webhook_calls', 'sum by (${cluster}, name) (rate(apiserver_admission_webhook_admission_duration_seconds_count{%s}[${window}]))' % ours),
            windowed('name:kaishare_webhook_calls_failed', |||
              sum by (${cluster}, name) (
                rate(apiserver_admission_webhook_fail_open_count{%(ours)s}[${window}])
                or rate(apiserver_admission_webhook_rejection_count{%(ours)s, error_type!="no_error"}[${window}])
              )
            ||| % { ours: ours }),
            windowed('name:kaishare_webhook_calls_slow', slow('${cluster}, name', 'apiserver_admission_webhook_admission_duration_seconds', ours)),
          ]
          for window in windows
        ]),
      },
    ],
  },
}
