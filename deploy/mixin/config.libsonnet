// Settings of the mixin. Override them with `+` on `_config`; README.md explains each.
{
  _config+:: {
    // Targets of both services, as the operator or deploy/alerts/README.md names their jobs. The operator names the job
    // of a PodMonitor NAMESPACE/NAME. Other namespaces do not count, because a tenant may have a PodMonitor of this name.
    agentSelector: 'job=~"(%s/)?kaishare-agent"' % $._config.agentNamespace,
    webhookSelector: 'job=~"(%s/)?kaishare-webhook"' % $._config.webhookNamespace,

    // The label that tells clusters apart where several share one Prometheus. Without the label it has no effect.
    clusterLabel: 'cluster',

    // Namespaces and names of the objects in kube-state-metrics. The namespaces matter: a tenant may have a DaemonSet of
    // the same name.
    agentNamespace: 'kaishare-agent',
    agentDaemonSet: 'kaishare-agent',
    webhookNamespace: 'kaishare',
    webhookDeployment: 'kaishare-webhook',

    // Whether this Prometheus must scrape a service even if kube-state-metrics does not list it.
    expected: { agent: false, webhook: false },

    // Base address of the repository, ending with a slash; null: alerts have no runbook_url.
    runbooks: null,

    // Further labels of each alert, such as {team: 'gpu'}.
    alertLabels: {},

    // The objective of the webhook: percentages of reviews that are answered, and answered fast. fastSeconds must be a
    // bucket of the webhook's histogram and of the API server's.
    slo: { answeredPercent: 99.9, fastPercent: 99, fastSeconds: 0.1 },

    // Settings of each alert: enabled (true unless given), for, keepFiringFor, severity, and the figures of its
    // expression, which are numbers.
    alerts: {
      // minutes: how many of the last 15 a flag stands, since the agent has waited for the grace before.
      KaisharePodOverShare: { severity: 'warning', minutes: 5 },
      // minutes: of the last hour.
      KaisharePodOverShareRepeatedly: { 'for': '5m', keepFiringFor: '15m', severity: 'warning', minutes: 12 },
      KaishareWorkloadOverShare: { 'for': '10m', keepFiringFor: '15m', severity: 'warning', minutes: 12 },
      KaisharePodLimitBypassed: { severity: 'warning', minutes: 2 },
      KaisharePodUnassignedGPU: { severity: 'warning', minutes: 5 },
      KaisharePodWithoutShare: { severity: 'warning', minutes: 5 },
      KaisharePodWithoutReservation: { severity: 'warning', minutes: 3 },
      KaisharePodShareChanged: { severity: 'warning', minutes: 2 },
      KaisharePodLimitNotInForce: { severity: 'warning', minutes: 2 },
      KaisharePodLimitDiffers: { severity: 'warning', minutes: 2 },

      // The next allocation fails, so the agent's grace is not awaited.
      // The driver's own memory makes a fully promised GPU a little short, which harms nothing until its pods use all.
      KaishareGPUMemoryAtRisk: { 'for': '1m', severity: 'warning', gibibytes: 0.5 },
      // 1 %: KAI counts a share in hundredths of a GPU, of a total floored to 100 MiB.
      KaishareGPUOverpromised: { 'for': '10m', severity: 'warning', percent: 101 },
      // Software of the host itself stays below 2 GiB. A CUDA context takes up to about 500 MiB, and a display server, an
      // MPS server and DCGM's profiling hold one each.
      KaishareGPUMemoryOutsidePods: { 'for': '4m', severity: 'warning', percent: 5, gibibytes: 2 },
      // A pod that replaces another may overlap with it for a moment.
      KaishareReservationConflict: { 'for': '5m', severity: 'warning' },
      KaishareReservationUnresolved: { 'for': '10m', severity: 'info' },

      // minutes: how many of the last 20. A node that restarts is away for less than five.
      KaishareAgentDown: { severity: 'warning', minutes: 5 },
      KaishareAgentRestarts: { severity: 'warning', restarts: 1 },
      KaishareNodeUnwatched: { severity: 'warning', minutes: 6 },
      KaishareAgentSimulated: { severity: 'critical' },
      KaishareAgentBlind: { severity: 'warning', minutes: 5 },
      KaishareAgentPartlyBlind: { severity: 'warning', minutes: 6 },
      KaishareEventsLost: { 'for': '5m', severity: 'info', events: 0 },
      KaishareEvictionRefused: { 'for': '10m', severity: 'warning', evictions: 0 },

      // minutes: how many of the last 10.
      KaishareWebhookDown: { severity: 'critical', minutes: 3 },
      KaishareFailedOpen: { severity: 'warning', requests: 0 },
      KaisharePatchRefused: { severity: 'critical', pods: 0 },
      KaishareEnforceUnreachable: { severity: 'critical', pods: 0 },
      KaishareAdmissionPolicyFailed: { severity: 'warning', failures: 0 },
      KaishareOrderWrong: { 'for': '5m', severity: 'critical' },
      KaisharePolicyInvalid: { 'for': '5m', severity: 'warning' },
      // A serving certificate from kaishare's CA lasts 7 days and is renewed with more than 2 left.
      KaishareServingCertificateEnding: { 'for': '1h', severity: 'critical', days: 2 },
      KaishareCAEnding: { 'for': '1h', severity: 'critical', days: 14 },
      KaishareCertificateRotationFailing: { 'for': '15m', severity: 'warning', failures: 0 },
      // One error of the webhook's own stages raises the alert. Unreadable requests come from other clients.
      KaishareWebhookErrors: { severity: 'warning', errors: 0, unusableRequests: 20 },
      KaishareReviewsShed: { severity: 'warning', reviews: 0 },

      // Burn rates and windows of Google's SRE workbook, chapter "Alerting on SLOs": 14.4 uses 2 % of a month's budget in
      // one hour, 6 uses 5 % in six hours. `reviews` is the least number of bad reviews in the long window.
      KaishareWebhookFailureBurnFast: { 'for': '2m', severity: 'critical', burnRate: 14.4, reviews: 10 },
      KaishareWebhookFailureBurnSlow: { 'for': '15m', severity: 'warning', burnRate: 6, reviews: 10 },
      KaishareWebhookLatencyBurnFast: { 'for': '2m', severity: 'warning', burnRate: 14.4, reviews: 10 },
      KaishareWebhookLatencyBurnSlow: { 'for': '15m', severity: 'info', burnRate: 6, reviews: 10 },

      // minutes: how many of the last 10, after 5 without contact.
      KaishareWatchStale: { severity: 'warning', minutes: 2 },

      KaishareAgentNotScraped: { 'for': '15m', severity: 'warning' },
      KaishareWebhookNotScraped: { 'for': '15m', severity: 'warning' },
      KaishareLabelsLost: { 'for': '5m', severity: 'warning' },
    },

    // The text of a figure in an expression. The chart's rendering replaces this function.
    number:: function(name, value)
      if std.isNumber(value) then '%s' % value else error '_config: %s is %s; it must be a number' % [name, std.manifestJsonMinified(value)],
  },
}
