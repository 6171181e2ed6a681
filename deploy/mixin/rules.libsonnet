// Recording rules.
//
// - Pods are compared by uid, GPUs by gpu_uuid. The cluster's label counts where several clusters share one Prometheus,
//   and is absent elsewhere.
// - A series that is absent never counts as 0.
local text = import 'text.libsonnet';

local windows = ['5m', '30m', '1h', '6h'];
{
  local texts = text.shared($._config),
  local record(name, expr) = { record: name, expr: text.fill(expr, texts) },

  local perGpu(series) = |||
    %s
      / on (${cluster}, gpu_uuid) group_left max by (${cluster}, gpu_uuid) (kaishare_gpu_memory_total_bytes)
  ||| % series,
  local used = 'kaishare_pod_gpu_memory_used_bytes',
  local share = 'kaishare_pod_gpu_memory_share_bytes',
  // Memory in use divided by shares. A pod counts only if both its figures are known.
  local usedOfShare(labels) = |||
    sum by (%(labels)s) (
      %(used)s and on (${cluster}, uid, gpu_uuid) %(share)s
    ) / sum by (%(labels)s) (
      %(share)s and on (${cluster}, uid, gpu_uuid) %(used)s
    )
  ||| % { labels: labels, used: used, share: share },
  local gpus(labels, series) = 'sum by (%s) (\n  %s\n)' % [labels, std.strReplace(std.rstripChars(perGpu(series), '\n'), '\n', '\n  ')],

  // Reviews that got no answer of the webhook's, each counted once: shed reviews, and failures by stage. The stage policies
  // also counts failed updates that concern no review. They are rare, and no other series has the pods that mode enforce
  // refuses because their policy is unknown: such a review is answered with HTTP 500 and has no action.
  local failed = |||
    rate(kaishare_webhook_shed_total[${window}])
      or rate(kaishare_webhook_errors_total{stage=~"patch|mutate|validate-pods|validate-namespaces|timeout|policies|http"}[${window}])
  |||,
  local ours = 'name=~".+\\\\.kaishare\\\\.dev"',
  local slow(labels, histogram, matcher) = |||
    sum by (%(labels)s) (rate(%(histogram)s_count{%(matcher)s}[${window}]))
      - sum by (%(labels)s) (rate(%(histogram)s_bucket{%(all)sle="${fastSeconds}"}[${window}]))
  ||| % { labels: labels, histogram: histogram, matcher: matcher, all: if matcher == '' then '' else matcher + ', ' },

  prometheusRules+:: {
    groups+: [
      {
        name: 'kaishare-gpu-figures',
        rules: [
          record('gpu:kaishare_gpu_memory_unattributed_bytes:max', 'max by (${cluster}, node, gpu, gpu_uuid, model) (kaishare_gpu_memory_unattributed_bytes)'),
          record('gpu:kaishare_gpu_memory_promised:ratio', |||
            max by (${cluster}, node, gpu, gpu_uuid, model) (kaishare_gpu_memory_promised_bytes)
              / max by (${cluster}, node, gpu, gpu_uuid, model) (kaishare_gpu_memory_total_bytes)
          |||),
        ],
      },
      // Figures by queue and namespace. Tenants that run KAI inside their vClusters choose names of queues themselves, so a
      // queue is known by `vcluster` and `queue`; `vcluster` is absent for pods of the host.
      {
        name: 'kaishare-figures',
        rules: [
          record('queue:kaishare_pod_gpu_memory_used_bytes:sum', 'sum by (${cluster}, vcluster, queue) (%s)' % used),
          record('queue:kaishare_pod_gpu_memory_share_bytes:sum', 'sum by (${cluster}, vcluster, queue) (%s)' % share),
          record('queue:kaishare_pod_gpu_memory_used_share:ratio', usedOfShare('${cluster}, vcluster, queue')),
          record('namespace:kaishare_pod_gpu_memory_used_bytes:sum', 'sum by (${cluster}, namespace) (%s)' % used),
          record('namespace:kaishare_pod_gpu_memory_share_bytes:sum', 'sum by (${cluster}, namespace) (%s)' % share),
          record('namespace:kaishare_pod_gpu_memory_used_share:ratio', usedOfShare('${cluster}, namespace')),
          // Of each pod on each GPU: quantile_over_time() of it is the share that would do.
          record('pod:kaishare_pod_gpu_memory_used_share:ratio', |||
            max by (${cluster}, vcluster, queue, namespace, pod, uid, gpu_uuid) (%s)
              / (max by (${cluster}, vcluster, queue, namespace, pod, uid, gpu_uuid) (%s) > 0)
          ||| % [used, share]),

          // In GPUs, the unit of KAI's own figures. Not for MIG devices, which are no part of a shared GPU.
          record('queue:kaishare_gpus_promised:sum', gpus('${cluster}, vcluster, queue', share)),
          record('queue:kaishare_gpus_used:sum', gpus('${cluster}, vcluster, queue', used)),
          record('namespace:kaishare_gpus_promised:sum', gpus('${cluster}, namespace', share)),
          record('namespace:kaishare_gpus_used:sum', gpus('${cluster}, namespace', used)),

          // The scrape configuration of a KAI inside a vCluster adds `vcluster` to its series.
          record('queue:kai_queue_allocated_gpus:max', 'max by (${cluster}, vcluster, queue) (label_replace(kai_queue_allocated_gpus, "queue", "$1", "queue_name", "(.+)"))'),
          // KAI writes -1 for a queue without a quota.
          record('queue:kai_queue_deserved_gpus:max', 'max by (${cluster}, vcluster, queue) (label_replace(kai_queue_deserved_gpus >= 0, "queue", "$1", "queue_name", "(.+)"))'),
          // The host's KAI counts a queue's pods of all vClusters together; a KAI inside a vCluster counts its own.
          record('queue:kaishare_gpus_used_allocated:ratio', |||
            sum by (${cluster}, queue) (queue:kaishare_gpus_used:sum) / (queue:kai_queue_allocated_gpus:max{vcluster=""} > 0)
            or
            queue:kaishare_gpus_used:sum{vcluster!=""} / (queue:kai_queue_allocated_gpus:max{vcluster!=""} > 0)
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
                rate(kaishare_webhook_requests_total{action!="error"}[${window}])
                or %s
              )
            ||| % std.rstripChars(failed, '\n')),
            windowed('job:kaishare_webhook_reviews_failed', 'sum by (${cluster}, namespace, job) (\n  %s\n)' % std.rstripChars(failed, '\n')),
            windowed('job:kaishare_webhook_reviews_slow', slow('${cluster}, namespace, job', 'kaishare_webhook_request_duration_seconds', '')),
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
