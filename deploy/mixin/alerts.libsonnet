// Alerts. docs/runbooks.md has a section for each.
//
// - Both jobs are scraped with honor_labels: true (deploy/alerts/README.md); KaishareLabelsLost says if not.
// - Pods are compared by uid, GPUs by gpu_uuid. The cluster's label counts where several clusters share one Prometheus,
//   and is absent elsewhere.
// - A series that is absent never counts as 0. The only alerts on absent series are those about absence: NodeUnwatched,
//   AgentBlind, WatchStale, WebhookDown, AgentNotScraped, WebhookNotScraped.
// - A state is judged by the minutes of a window in which it was seen, never by an unbroken stretch: an agent that starts again
//   and again, or is blind for half of the time, would interrupt each stretch.
// - Series of the services count with their job only, since any scraped target can export these names.
// - Labels that change when a pod of kaishare is replaced are removed where they would make an old alert a new one.
local firstActs = import 'first_acts.libsonnet';
local text = import 'text.libsonnet';

// Increases of a counter with labels, summed by labels. Such a counter has no series before it first counts, and
// increase() does not see a series begin. So there are three cases:
// 1. increase() over the window.
// 2. The series is new: its target was scraped one window ago (up == 1), and that scrape did not have the series. `up` and
//    the counter are samples of one scrape, so a failed scrape, a pause of Prometheus and a new Prometheus lack the
//    proof, and an old count raises nothing. The failures lie between that scrape and now.
// 3. The process is younger than the window, so everything that it counted is recent. That covers an instance that is
//    new to Prometheus, and a restart after which the counter reaches its old value again, which increase() takes for
//    no change.
local counted(by, metric, matchers, minutes) = |||
  sum by (%(by)s) (
    increase(%(series)s[%(minutes)dm]) > 0
    or (
      %(series)s
        unless %(metric)s offset %(minutes)dm
        and on (${cluster}, job, instance) up offset %(minutes)dm == 1
    )
    or (
      %(series)s
        and on (${cluster}, job, instance) time() - process_start_time_seconds < %(seconds)d
    )
  )
||| % { by: by, metric: metric, series: metric + '{' + matchers + '}', minutes: minutes, seconds: minutes * 60 };
local exceeds(counted, figure) = std.rstripChars(counted, '\n') + ' > ' + figure;

// Labels of the agent's pod and target, which change when the agent is replaced.
local withoutAgent = 'max without (instance, job, service, endpoint, container)';

// Minutes of a window in which a condition was met. Its labels must be the same throughout.
local minutesOf(condition, window) = 'count_over_time((\n  %s\n)[%s:1m])' % [std.strReplace(std.rstripChars(condition, '\n'), '\n', '\n  '), window];

// The agent flags a pod after a grace (2 minutes by default). A flag is cleared after two samples within the share, and a pod
// that dips below its share gets the flag again soon.
local flagged(reason) = minutesOf('%s (kaishare_pod_flagged{${agent}, reason="%s"}) == 1' % [withoutAgent, reason], '15m') + ' >= ${minutes}';

// The largest figure of the last minutes, by GPU: an agent that starts again is away for up to five minutes.
local ofGpu(series) = 'max by (${cluster}, node, gpu, gpu_uuid, model) (max_over_time(%s[6m]))' % series;

local pod = '{{ $labels.namespace }}/{{ $labels.pod }}{{ with $labels.queue }} of queue {{ . }}{{ end }}';
local gpu = 'GPU {{ $labels.gpu }} ({{ $labels.gpu_uuid }}) of {{ $labels.node }}';
local agent = 'The agent {{ with $labels.pod }}{{ . }} {{ end }}at {{ $labels.instance }}{{ with $labels.node }} on {{ . }}{{ end }}';
local figure(metric, otherwise) =
  '{{ with printf "' + metric + '{uid=%q,gpu_uuid=%q}" $labels.uid $labels.gpu_uuid | query }}{{ . | first | value | humanize1024 }}B{{ else }}' + otherwise + '{{ end }}';
// A pod that is flagged again and again may be within its share at this moment.
local heldLately =
  '{{ with printf "max(max_over_time(kaishare_pod_gpu_memory_used_bytes{uid=%q,gpu_uuid=%q}[15m]))" $labels.uid $labels.gpu_uuid | query }}held up to {{ . | first | value | humanize1024 }}B in the last 15 minutes{{ else }}held more than it may{{ end }}';

// The three pods of a GPU with the largest value of an expression, as a list with the values. ${on} in the expression selects
// series of the GPU; the cluster is empty where series have no such label.
local largestPods(expr, otherwise) =
  local where = '{gpu_uuid=%q,${cluster}=%q}';
  '{{ range $i, $p := printf "topk(3, ' + std.strReplace(expr, '${on}', where) + ')"'
  + std.join('', std.repeat([' $labels.gpu_uuid $labels.${cluster}'], std.length(std.findSubstr('${on}', expr))))
  + ' | query | sortByLabel "pod" }}{{ if $i }},{{ end }} {{ .Labels.namespace }}/{{ .Labels.pod }} ({{ .Value | humanize1024 }}B){{ else }} ' + otherwise + '{{ end }}';
local byPod(metric) = 'max by (namespace, pod, uid) (' + metric + '${on})';
local usedByPod = byPod('kaishare_pod_gpu_memory_used_bytes');
local sharesByPod = byPod('kaishare_pod_gpu_memory_share_bytes');

// Stages of requests that cannot be read. http is none of them: it counts answers with HTTP 500.
local clientStages = 'decode|slow-body|too-large';

// Both windows of a pair must burn: the long one proves that the budget suffers, the short one that it still does. A
// percentage of few reviews says little, so the bad reviews of the long window are counted, too. The API server's series
// (label name) show what never reached the webhook.
local burns(bad, budget, long, short, seconds) =
  local pair(reviews) = |||
    (
      %(reviews)s_%(bad)s:rate%(long)s / %(reviews)s:rate%(long)s > ${burnRate} * %(budget)s
      and %(reviews)s_%(bad)s:rate%(short)s / %(reviews)s:rate%(short)s > ${burnRate} * %(budget)s
      and %(reviews)s_%(bad)s:rate%(long)s * %(seconds)d >= ${reviews}
    )
  ||| % { reviews: reviews, bad: bad, budget: budget, long: long, short: short, seconds: seconds };
  pair('job:kaishare_webhook_reviews') + 'or\n' + pair('name:kaishare_webhook_calls');
local burnFast(bad, budget) = burns(bad, budget, '1h', '5m', 3600);
local burnSlow(bad, budget) = burns(bad, budget, '6h', '30m', 6 * 3600);
local reviewsOf = '{{ with $labels.name }}calls of {{ . }} by the API server{{ else }}reviews of {{ $labels.job }}{{ end }}';

// A service is installed, as kube-state-metrics says for each cluster, or expected by the settings, and has had no target
// for an hour. `up` counts and not kaishare_build_info: a failed scrape is the subject of AgentDown and WebhookDown, and a
// job of another name leaves those alerts blind. absent() is 1, so that `== 0` never holds. It knows no cluster, and
// counts only where kube-state-metrics does not know the service: one without pods, as in a cluster without GPU nodes, has
// no target.
local notScraped(installed, selector, expected) = |||
  (
    max by (${cluster}, namespace) (%(installed)s) > 0
      unless on (${cluster}) max_over_time(up{%(selector)s}[1h])
  )
  or on () (
    absent_over_time(up{%(selector)s}[1h])
      unless on () %(installed)s
  ) == %(expected)s
||| % { installed: installed, selector: selector, expected: expected };

{
  local config = $._config,

  local alert(name, summary, expr, description) =
    local settings = config.alerts[name];
    local setting(key) = if key in settings then settings[key] else null;
    local uses(key) = std.length(std.findSubstr('${' + key + '}', expr + summary + description)) > 0;
    local figures = {
      [key]: if uses(key) then config.number(name + '.' + key, settings[key]) else error '_config.alerts.%s: there is no setting %s' % [name, key]
      for key in std.objectFields(settings)
      if !std.member(['enabled', 'for', 'keepFiringFor', 'severity'], key)
    };
    local fill(part) = text.fill(part, text.shared(config) + {
      agentExpected: config.number('expected.agent', if config.expected.agent then 1 else 0),
      webhookExpected: config.number('expected.webhook', if config.expected.webhook then 1 else 0),
    } + figures);
    {
      alert: name,
      expr: fill(expr),
      [if setting('for') != null then 'for']: settings['for'],
      [if setting('keepFiringFor') != null then 'keep_firing_for']: settings.keepFiringFor,
      labels: config.alertLabels { severity: settings.severity },
      annotations: {
        summary: fill(summary),
        description: fill(description),
        first_act: fill(firstActs[name]),
        [if config.runbooks != null then 'runbook_url']: config.runbooks + 'docs/runbooks.md#' + std.asciiLower(name),
      },
    },

  local groups = [
    {
      name: 'kaishare-pods',
      rules: [
        alert(
          'KaisharePodOverShare',
          'A pod holds more GPU memory than its share',
          flagged('over-share'),
          pod + ' ' + heldLately
          + ', its share is ' + figure('kaishare_pod_gpu_memory_share_bytes', 'no longer known') + ', on ' + gpu + '.'
        ),
        // The agent counts time over a share whether it flags the pod or not. 12 minutes are a fifth of the hour: a pod that
        // is over for more than a third of the time is flagged, unless its namespace has a longer grace. Prometheus' own
        // ALERTS of KaisharePodOverShare have no job, and those that a scraped target exports have one.
        alert(
          'KaisharePodOverShareRepeatedly',
          'A pod exceeds its share repeatedly, each time too briefly for KaisharePodOverShare',
          |||
            max without (job) (pod:kaishare_pod_over_share_seconds:increase1h) > ${minutes} * 60
              unless on (${cluster}, uid) max_over_time(ALERTS{alertname="KaisharePodOverShare", alertstate="firing", job=""}[1h])
          |||,
          pod + ' held more than its share of a GPU{{ with $labels.node }} of {{ . }}{{ end }} for {{ $value | humanizeDuration }} of the last hour, and was not flagged for long.'
        ),
        // Pods that end before their grace are never flagged, each by itself. The time of all pods of the workload in the last
        // hour is divided by the number of pods at a time: 12 minutes mean the same as for a single pod above. Pods that
        // these two alerts name are left out. The mean is over the minutes in which the workload had pods.
        alert(
          'KaishareWorkloadOverShare',
          'The pods of a workload exceed their shares one after the other, each for less than the grace',
          |||
            max without (job) (
              sum by (${cluster}, job, namespace, vcluster, virtual_namespace, workload_kind, workload) (
                pod:kaishare_pod_over_share_seconds:increase1h
                  unless on (${cluster}, uid) max_over_time(ALERTS{alertname=~"KaisharePodOverShare|KaisharePodOverShareRepeatedly", alertstate="firing", job=""}[1h])
              )
                / avg_over_time(workload:kaishare_pods_judged:count[1h])
            ) > ${minutes} * 60
          |||,
          '{{ with $labels.workload }}Pods of the {{ $labels.workload_kind }} {{ . }}{{ else }}Pods without a controller{{ end }} in namespace {{ $labels.namespace }}{{ with $labels.virtual_namespace }} ({{ . }} of vCluster {{ $labels.vcluster }}){{ end }} held more than their shares for {{ $value | humanizeDuration }} of the last hour, counted as one pod at a time, and none of them was flagged for long.'
        ),
        alert(
          'KaisharePodLimitBypassed',
          'A pod holds more GPU memory than its enforcer allows',
          flagged('limit-bypassed'),
          pod + ' holds ' + figure('kaishare_pod_gpu_memory_used_bytes', 'more than it may')
          + ' and its limit is ' + figure('kaishare_pod_gpu_memory_limit_bytes', 'no longer known') + ' on ' + gpu + ': the enforcer is not effective there.'
        ),
        alert(
          'KaisharePodUnassignedGPU',
          'A pod uses a GPU that KAI did not assign to it',
          flagged('unassigned-gpu'),
          pod + ' has processes on ' + gpu + ', which KAI did not assign to it.'
        ),
        alert(
          'KaisharePodWithoutShare',
          'A pod without a share uses a GPU',
          flagged('no-share'),
          '{{ $labels.namespace }}/{{ $labels.pod }} has processes on ' + gpu + ' and no share that KAI granted: KAI does not count this memory.'
        ),
        alert(
          'KaisharePodWithoutReservation',
          'A pod runs on a shared GPU that KAI has not reserved',
          flagged('no-reservation'),
          pod + ' on {{ $labels.node }} has a share, and its GPU group has no reservation pod: KAI may delete the pod, or give its GPU to another pod.'
        ),
        alert(
          'KaisharePodShareChanged',
          "A pod's share was edited after KAI had placed it",
          flagged('share-changed'),
          "The annotations of {{ $labels.namespace }}/{{ $labels.pod }}{{ with $labels.queue }} (queue {{ . }}){{ end }} on {{ $labels.node }} contradict KAI's record, or their own first values. The record counts."
        ),
        alert(
          'KaisharePodLimitNotInForce',
          'A pod was promised a GPU memory limit that the driver does not hold',
          flagged('limit-not-in-force'),
          pod + ' has no limit in the driver on ' + gpu + ', although it was promised one: nothing keeps it from taking the memory of others.'
        ),
        alert(
          'KaisharePodLimitDiffers',
          'The driver holds a pod to another GPU memory limit than promised',
          flagged('limit-differs'),
          pod + ' has another limit in the driver than it was promised on ' + gpu + '.'
        ),
      ],
    },
    {
      name: 'kaishare-gpus',
      rules: [
        // The agent decides what is at risk: what its pods are promised and do not use, as far as it is not free. Above 0 in a
        // fifth of the last ten minutes: one peak of a minute does not count, and a peak that returns does.
        alert(
          'KaishareGPUMemoryAtRisk',
          'GPU memory that pods were promised is not free',
          'quantile_over_time(0.8, (max by (${cluster}, node, gpu, gpu_uuid, model) (kaishare_gpu_at_risk_bytes{${agent}}))[10m:1m]) > ${gibibytes} * 2^30',
          '{{ $value | humanize1024 }}B that pods of GPU {{ $labels.gpu }} ({{ $labels.gpu_uuid }}, {{ $labels.model }}) of {{ $labels.node }} were promised and do not use yet are not free: their next allocation may fail.'
          + ' Above their shares:' + largestPods(usedByPod + ' - ' + sharesByPod + ' > 0 or ' + usedByPod + ' > 0 unless ' + sharesByPod, 'no pod that is known')
          + '. Outside of pods: {{ with printf "gpu:kaishare_gpu_memory_outside_pods_bytes:sum{gpu_uuid=%q,${cluster}=%q}" $labels.gpu_uuid $labels.${cluster} | query }}{{ . | first | value | humanize1024 }}B{{ else }}unknown{{ end }}'
          + '. Promised and not used yet:' + largestPods(sharesByPod + ' - ' + usedByPod + ' > 0', 'unknown') + '.'
        ),
        alert(
          'KaishareGPUOverpromised',
          'The shares on a GPU exceed its memory',
          |||
            %s
              > ${percent} / 100 * %s
          ||| % [ofGpu('kaishare_gpu_memory_promised_bytes{${agent}}'), ofGpu('kaishare_gpu_memory_total_bytes{${agent}}')],
          'Pods were promised {{ $value | humanize1024 }}B of GPU {{ $labels.gpu }} ({{ $labels.gpu_uuid }}, {{ $labels.model }}) of {{ $labels.node }}, which has less: a pod within its share may run out of memory.'
        ),
        // The level and not the growth: what is gone before Prometheus first looks, or for longer than its window, is gone, too.
        alert(
          'KaishareGPUMemoryOutsidePods',
          'More than ${percent} % and ${gibibytes} GiB of a GPU are held by no pod',
          |||
            max without (job) (quantile_over_time(0.5, gpu:kaishare_gpu_memory_outside_pods_bytes:sum[20m])) > ${gibibytes} * 2^30
              and on (${cluster}, gpu_uuid) (
                max without (job) (quantile_over_time(0.5, gpu:kaishare_gpu_memory_outside_pods_bytes:sum[20m]))
                  > on (${cluster}, gpu_uuid) group_left () ${percent} / 100 * max by (${cluster}, gpu_uuid) (max_over_time(kaishare_gpu_memory_total_bytes{${agent}}[6m]))
                or max without (job) (gpu:kaishare_gpu_memory_outside_pods_bytes:sum)
                  unless on (${cluster}, gpu_uuid) max_over_time(kaishare_gpu_memory_total_bytes{${agent}}[6m])
              )
          |||,
          'Host processes, pods that the API server no longer has, and memory without a process hold {{ $value | humanize1024 }}B of GPU {{ $labels.gpu }} ({{ $labels.gpu_uuid }}, {{ $labels.model }}) of {{ $labels.node }}. KAI does not count it, and no verdict covers it.'
        ),
        alert(
          'KaishareReservationConflict',
          'Two namespaces claim the same GPU',
          'max by (${cluster}, node, gpu_uuid) (max_over_time(kaishare_agent_attribution_problem{${agent}, reason="reservation-conflict"}[6m])) == 1',
          'Reservation pods of two namespaces name GPU {{ $labels.gpu_uuid }}{{ with printf "kaishare_gpu_memory_total_bytes{gpu_uuid=%q}" $labels.gpu_uuid | query }} of {{ . | first | label "node" }}{{ end }}, which only one of them can have: a mistake, or a tenant that claims the GPU of another.'
        ),
        // The agent reports it only for a reservation pod that is older than its grace.
        alert(
          'KaishareReservationUnresolved',
          'A reservation pod names no GPU of its node',
          'max_over_time(kaishare_agent_attribution_problem{${agent}, reason="reservation-unresolved"}[6m]) == 1',
          'A reservation pod {{ with $labels.node }}on {{ . }} {{ end }}names no GPU that the agent {{ with $labels.pod }}{{ . }} {{ end }}at {{ $labels.instance }} sees: the GPU of the pods in its group is unknown.'
        ),
      ],
    },
    {
      name: 'kaishare-agent',
      rules: [
        alert(
          'KaishareAgentDown',
          'An agent does not answer',
          minutesOf('up{${agent}} == 0', '20m') + ' >= ${minutes}',
          agent + " did not answer Prometheus in ${minutes} or more of the last 20 minutes: that node's GPUs are not watched meanwhile."
        ),
        // Of one target by its start times, else of one node by its targets: a pod that is replaced has another instance. An update
        // and its roll-back are two starts of a target whose name is the node's.
        alert(
          'KaishareAgentRestarts',
          'The agent of a node starts again and again',
          |||
            changes(process_start_time_seconds{${agent}}[30m]) > ${restarts}
            or count by (${cluster}, job, node) (
              max by (${cluster}, job, node, instance) (max_over_time(kaishare_gpu_memory_promised_bytes{${agent}}[30m]))
            ) - 1 > ${restarts}
          |||,
          'The agent {{ with $labels.instance }}at {{ . }} {{ end }}{{ with $labels.node }}on {{ . }} {{ end }}started {{ $value }} times in 30 minutes. Pods are not judged while it is away.'
        ),
        alert(
          'KaishareNodeUnwatched',
          "A node's GPUs are not watched",
          minutesOf('node:kaishare_watched:bool == 0', '20m') + ' >= ${minutes}',
          'No agent reported any GPU of {{ $labels.node }} in ${minutes} or more of the last 20 minutes. The node has NVIDIA GPUs, or had some when an agent last answered.'
        ),
        alert(
          'KaishareAgentSimulated',
          'An agent reports synthetic figures',
          'max by (${cluster}, job, instance, namespace, pod, node) (max_over_time(kaishare_build_info{${agent}, component="agent", simulated="true"}[6m])) == 1',
          agent + ' runs with --gpus simulated: its GPUs, processes and flags are made up.'
        ),
        // Without a sample by change and not by age: the clocks of node and Prometheus may differ. One sample in the window shows
        // no change whatever the agent does, as after a pause of Prometheus or between failed scrapes.
        alert(
          'KaishareAgentBlind',
          'An agent cannot attribute GPU memory to pods',
          minutesOf(|||
            max by (${cluster}, job, instance, namespace, pod, node) (
              kaishare_agent_attribution_ok{${agent}} == 0
              or (
                changes(kaishare_agent_last_sample_timestamp_seconds{${agent}}[5m]) == 0
                  and count_over_time(kaishare_agent_last_sample_timestamp_seconds{${agent}}[5m]) > 1
              )
              or up{${agent}} == 1 unless on (${cluster}, job, instance) kaishare_agent_last_sample_timestamp_seconds
            )
          |||, '20m') + ' >= ${minutes}',
          agent + ' judged no pod in ${minutes} or more of the last 20 minutes, or had no good sample of its GPUs; problems: {{- range ' + firstActs.problems + ' }} {{ .Labels.reason }}{{ else }} none named{{ end }}.'
        ),
        // reservation-conflict and reservation-unresolved have alerts of their own.
        alert(
          'KaishareAgentPartlyBlind',
          "Part of a node's GPUs or pods is not watched as a whole",
          minutesOf(|||
            max by (${cluster}, job, instance, namespace, pod, node, reason, gpu_uuid) (kaishare_agent_attribution_problem{${agent}, reason!~"reservation-.+"}) == 1
              and on (${cluster}, job, instance) kaishare_agent_attribution_ok{${agent}} == 1
          |||, '20m') + ' >= ${minutes}',
          agent + ' had the problem {{ $labels.reason }}{{ with $labels.gpu_uuid }} with {{ . }}{{ end }} in ${minutes} or more of the last 20 minutes. Pods there are judged by what is known of them, or not at all.'
        ),
        alert(
          'KaishareEventsLost',
          'Events about pods were not written',
          exceeds(counted('${cluster}, instance, job, node, reason, result', 'kaishare_agent_events_total', '${agent}, result=~"dropped|failed"', 15), '${events}'),
          'The agent at {{ $labels.instance }} failed to write about {{ $value | printf "%.0f" }} Events {{ $labels.reason }} in 15 minutes ({{ $labels.result }}): owners of pods do not see them.'
        ),
        alert(
          'KaishareEvictionRefused',
          'A pod over its share could not be evicted',
          exceeds(counted('${cluster}, instance, job, node, result', 'kaishare_agent_evictions_total', '${agent}, result=~"disruption-budget|forbidden|failed"', 30), '${evictions}'),
          'The agent at {{ $labels.instance }} tried about {{ $value | printf "%.0f" }} times in 30 minutes to evict pods whose namespaces ask for it, and could not: {{ $labels.result }}.'
        ),
      ],
    },
    {
      name: 'kaishare-webhook',
      rules: [
        // A job that is gone has lost no webhook if another job has targets in its namespace: the job was renamed.
        alert(
          'KaishareWebhookDown',
          'No replica of the webhook answers',
          |||
            %s >= ${minutes}
            or (
              max by (${cluster}, namespace, job) (max_over_time(up{${webhook}}[1h]))
                unless on (${cluster}, namespace) max_over_time(up{${webhook}}[3m])
            )
          ||| % std.strReplace(minutesOf('max by (${cluster}, namespace, job) (up{${webhook}}) == 0', '10m'), '\n', '\n'),
          'No replica of {{ $labels.job }} answers Prometheus: new pods are probably admitted without queue and share, and those of namespaces in mode enforce are refused.'
        ),
        alert(
          'KaishareFailedOpen',
          'Requests passed without the webhook',
          exceeds(counted('${cluster}, name', 'apiserver_admission_webhook_fail_open_count', 'name=~".+\\\\.kaishare\\\\.dev"', 10), '${requests}'),
          'The API server got no answer from {{ $labels.name }} about {{ $value | printf "%.0f" }} times in 10 minutes, and admitted the requests unchanged.'
        ),
        alert(
          'KaisharePatchRefused',
          "The API server could not apply a patch of the webhook's, and refused the pod",
          exceeds(counted('${cluster}, name', 'apiserver_admission_webhook_rejection_count', 'name="pods.mutate.kaishare.dev", error_type="apiserver_internal_error"', 10), '${pods}'),
          'About {{ $value | printf "%.0f" }} pods were refused in 10 minutes because the API server could not use the answer of {{ $labels.name }}. This is a defect of kaishare.'
        ),
        alert(
          'KaishareEnforceUnreachable',
          'Pods of enforced namespaces are refused because the webhook does not answer',
          exceeds(counted('${cluster}, name', 'apiserver_admission_webhook_rejection_count', 'name="pods.validate.kaishare.dev", error_type!="no_error"', 10), '${pods}'),
          'About {{ $value | printf "%.0f" }} pods were refused in 10 minutes because {{ $labels.name }} gave no usable answer: in namespaces with kaishare.dev/mode=enforce no pod can be created while that lasts.'
        ),
        // The counter of ValidatingAdmissionPolicies has no such alert: a denied pod has error_type="invalid_error" there, as an
        // expression that failed has (Kubernetes 1.36.3).
        alert(
          'KaishareAdmissionPolicyFailed',
          'The admission policy failed, and pods passed unchanged',
          exceeds(counted('${cluster}, policy, error_type', 'apiserver_mutating_admission_policy_check_total', 'policy="kaishare", error_type!="no_error"', 10), '${failures}'),
          'The API server could not evaluate the MutatingAdmissionPolicy {{ $labels.policy }} about {{ $value | printf "%.0f" }} times in 10 minutes ({{ $labels.error_type }}), and admitted the pods unchanged.'
        ),
        alert(
          'KaishareOrderWrong',
          "KAI's webhook is called before kaishare's",
          'min by (${cluster}, namespace, job) (min_over_time(kaishare_webhook_order_ok{${webhook}}[3m])) == 0',
          "A mutating webhook configuration that looks at schedulerName sorts before kaishare's: KAI's webhook is not called for pods that kaishare assigns to KAI, and their shares have no effect."
        ),
        alert(
          'KaisharePolicyInvalid',
          'A namespace has a label whose value is ignored',
          'max by (${cluster}, namespace, label) (max_over_time(kaishare_webhook_policy_invalid{${webhook}}[3m])) == 1',
          'The value of {{ $labels.label }} of namespace {{ $labels.namespace }} is not allowed, and is ignored.'
        ),
        alert(
          'KaishareServingCertificateEnding',
          "The webhook's serving certificate ends soon",
          |||
            min by (${cluster}, namespace, job) (kaishare_certificate_expiry_timestamp_seconds{${webhook}, kind="serving"}) - time()
              < ${days} * 24 * 3600
          |||,
          'The serving certificate of {{ $labels.job }} ends in {{ $value | humanizeDuration }} and was not renewed: after that the API server cannot connect to it.'
        ),
        alert(
          'KaishareCAEnding',
          "The webhook's CA ends soon",
          |||
            min by (${cluster}, namespace, job) (kaishare_certificate_expiry_timestamp_seconds{${webhook}, kind="ca"}) - time()
              < ${days} * 24 * 3600
          |||,
          'The CA of {{ $labels.job }} ends in {{ $value | humanizeDuration }} and was not renewed: after that the API server cannot connect to the webhook.'
        ),
        alert(
          'KaishareCertificateRotationFailing',
          'The webhook cannot renew its certificates',
          exceeds(counted('${cluster}, namespace, job', 'kaishare_certificate_rotations_total', '${webhook}, result="failed"', 60), '${failures}'),
          '{{ $labels.job }} failed about {{ $value | printf "%.0f" }} times within the last hour to renew a certificate or to publish it.'
        ),
        alert(
          'KaishareWebhookErrors',
          'The webhook counts errors',
          exceeds(counted('${cluster}, namespace, job, stage', 'kaishare_webhook_errors_total', '${webhook}, stage!~"%s"' % clientStages, 15), '${errors}')
          + '\nor\n'
          + exceeds(counted('${cluster}, namespace, job, stage', 'kaishare_webhook_errors_total', '${webhook}, stage=~"%s"' % clientStages, 15), '${unusableRequests}'),
          '{{ $labels.job }} counted about {{ $value | printf "%.0f" }} errors of stage {{ $labels.stage }} in 15 minutes.'
        ),
        // The counter has no labels and is there from the start.
        alert(
          'KaishareReviewsShed',
          'The webhook rejected reviews because too many were in progress',
          'sum by (${cluster}, namespace, job) (increase(kaishare_webhook_shed_total{${webhook}}[10m])) > ${reviews}',
          '{{ $labels.job }} answered about {{ $value | printf "%.0f" }} reviews with 503 in 10 minutes; the API server retries, and admits a pod unchanged if that takes too long.'
        ),
      ],
    },
    {
      name: 'kaishare-webhook-slo',
      rules: [
        alert(
          'KaishareWebhookFailureBurnFast',
          'Reviews fail, and use up the error budget within days',
          burnFast('failed', '${failureBudget}'),
          '{{ $value | humanizePercentage }} of the ' + reviewsOf + ' failed in the last hour, and they still fail: pods pass without queue and share, or are refused in mode enforce.'
        ),
        alert(
          'KaishareWebhookFailureBurnSlow',
          'Reviews fail, and use up the error budget before the month ends',
          burnSlow('failed', '${failureBudget}'),
          '{{ $value | humanizePercentage }} of the ' + reviewsOf + ' failed in the last 6 hours, and they still fail: pods pass without queue and share, or are refused in mode enforce.'
        ),
        alert(
          'KaishareWebhookLatencyBurnFast',
          'Reviews are slow, and use up the latency budget within days',
          burnFast('slow', '${latencyBudget}'),
          '{{ $value | humanizePercentage }} of the ' + reviewsOf + ' took longer than ${fastSeconds} s in the last hour, and they still do.'
        ),
        alert(
          'KaishareWebhookLatencyBurnSlow',
          'Reviews are slow, and use up the latency budget before the month ends',
          burnSlow('slow', '${latencyBudget}'),
          '{{ $value | humanizePercentage }} of the ' + reviewsOf + ' took longer than ${fastSeconds} s in the last 6 hours, and they still do.'
        ),
      ],
    },
    {
      name: 'kaishare-watches',
      rules: [
        // A healthy watch of the webhook restarts every 40 s. The agent's is renewed after 150 s of silence. So 5 minutes
        // without contact mean a failure. One sample in the window shows no change: see KaishareAgentBlind.
        alert(
          'KaishareWatchStale',
          'A watch of the API server delivers nothing',
          std.join('\nor\n', [minutesOf(|||
            (
              changes(kaishare_watch_last_contact_timestamp_seconds{%(job)s}[5m]) == 0
                and count_over_time(kaishare_watch_last_contact_timestamp_seconds{%(job)s}[5m]) > 1
            )
            or (
              max without (cause) (kaishare_watch_restarts_total{%(job)s})
                unless on (${cluster}, job, instance, resource) kaishare_watch_last_contact_timestamp_seconds
            )
          ||| % { job: job }, '10m') + ' >= ${minutes}' for job in ['${agent}', '${webhook}']]),
          '{{ $labels.job }} at {{ $labels.instance }} receives nothing about {{ $labels.resource }} from the API server, or never has.'
        ),
      ],
    },
    {
      name: 'kaishare-scraping',
      rules: [
        alert(
          'KaishareAgentNotScraped',
          'Prometheus does not scrape the agents',
          notScraped('kube_daemonset_status_desired_number_scheduled{namespace="${agentNamespace}", daemonset="${agentDaemonSet}"}', '${agent}', '${agentExpected}'),
          'Prometheus has had no target with ${agent} for an hour{{ with $labels.namespace }}, and the DaemonSet ${agentDaemonSet} of namespace {{ . }} has pods{{ end }}: alerts about GPUs and their pods cannot fire.'
        ),
        alert(
          'KaishareWebhookNotScraped',
          'Prometheus does not scrape the webhook',
          notScraped('kube_deployment_spec_replicas{namespace="${webhookNamespace}", deployment="${webhookDeployment}"}', '${webhook}', '${webhookExpected}'),
          'Prometheus has had no target with ${webhook} for an hour{{ with $labels.namespace }}, and the Deployment ${webhookDeployment} of namespace {{ . }} has replicas{{ end }}: alerts on its metrics cannot fire.'
        ),
        // Without honor_labels Prometheus renames the labels of kaishare's series that the target has, too. These four metrics
        // have such labels: the pod's and the namespace's names, and the node's where targets have a label `node`.
        alert(
          'KaishareLabelsLost',
          "Prometheus renames labels of kaishare's series",
          |||
            count by (${cluster}, job) (
              kaishare_pod_info{${agent}, exported_namespace!=""}
              or kaishare_pod_info{${agent}, exported_pod!=""}
              or kaishare_gpu_memory_total_bytes{${agent}, exported_node!=""}
              or kaishare_webhook_policy_invalid{${webhook}, exported_namespace!=""}
            ) > 0
          |||,
          '{{ $value }} series of {{ $labels.job }} have labels named exported_…, because the job lacks honor_labels: true. Alerts name the pods of kaishare instead of the pods that they are about.'
        ),
      ],
    },
  ],

  local defined = [rule.alert for group in groups for rule in group.rules],
  local isEnabled(name) = !('enabled' in config.alerts[name]) || config.alerts[name].enabled,
  local unknown = std.setDiff(std.objectFields(config.alerts), std.set(defined)),
  local histogramBuckets = [0.005, 0.025, 0.1, 0.5],

  assert unknown == [] : '_config.alerts: no alert is named ' + std.join(', ', unknown),
  assert !std.isNumber(config.slo.fastSeconds) || std.member(histogramBuckets, config.slo.fastSeconds) : '_config.slo.fastSeconds must be one of %s, the buckets of both histograms' % [histogramBuckets],
  assert config.runbooks == null || std.endsWith(config.runbooks, '/') : '_config.runbooks must end with a slash',

  prometheusAlerts+:: {
    groups+: [
      group
      for group in [
        group { rules: [rule for rule in group.rules if isEnabled(rule.alert)] }
        for group in groups
      ]
      if group.rules != []
    ],
  },
}
