// What to do first about each alert, in one sentence. docs/runbooks.md begins each section with it.
//
// agent_acts.json is generated from gpuagent/first_acts.py by `make chart`: the agent's API, its Events and these alerts give
// the same advice about flags, problems and GPUs.
local agent = import 'agent_acts.json';

// The act for a problem of the agent, by its reason. Reservation pods have alerts of their own.
local byReason(reason, otherwise) =
  local reasons = [key for key in std.objectFields(agent.problems) if !std.startsWith(key, 'reservation-')];
  '{{ if ' + std.join('{{ else if ', ['eq %s "%s" }}%s' % [reason, key, agent.problems[key]] for key in reasons])
  + '{{ else }}' + otherwise + '{{ end }}';

{
  // The problems of an agent in the last 20 minutes, for a `range`. Agents of two clusters may have one address; the cluster
  // is empty where series have no such label.
  problems:: 'printf "count by (reason) (max_over_time(kaishare_agent_attribution_problem{instance=%q,${cluster}=%q,reason!~\'reservation-.+\'}[20m]) == 1)" $labels.instance $labels.${cluster} | query | sortByLabel "reason"',

  KaisharePodOverShare: agent.flags['over-share'],
  KaisharePodOverShareRepeatedly: agent.flags['over-share'],
  KaishareWorkloadOverShare: agent.flags['over-share'],
  KaisharePodLimitBypassed: agent.flags['limit-bypassed'],
  KaisharePodLimitNotInForce: agent.flags['limit-not-in-force'],
  KaisharePodLimitDiffers: agent.flags['limit-differs'],
  KaisharePodUnassignedGPU: agent.flags['unassigned-gpu'],
  KaisharePodWithoutShare: agent.flags['no-share'],
  KaisharePodWithoutReservation: agent.flags['no-reservation'],
  KaisharePodShareChanged: agent.flags['share-changed'],

  KaishareGPUMemoryAtRisk: agent.gpus['at-risk'],
  KaishareGPUOverpromised: agent.gpus.overpromised,
  KaishareGPUMemoryOutsidePods: 'Find the processes with nvidia-smi and fuser on the node, and end those that should not run.',
  KaishareReservationConflict: agent.problems['reservation-conflict'],
  KaishareReservationUnresolved: agent.problems['reservation-unresolved'],

  KaishareAgentDown: "Read the end of the agent's log, also of its previous container: the last line names the cause.",
  KaishareAgentRestarts: "Read the end of the log of the agent's previous container: the last line names the cause.",
  KaishareNodeUnwatched: "Compare the node's labels and taints with those that the agent's DaemonSet selects; if its pod runs, read the pod's log.",
  KaishareAgentSimulated: "Set agent.simulated=false in the chart's values, and remove --gpus from agent.extraArgs.",
  KaishareAgentBlind: '{{ range $i, $problem := ' + self.problems + ' }}{{ if $i }} {{ end }}' + byReason('.Labels.reason', '')
                      + '{{ else }}' + agent.problems['sample-stale'] + '{{ end }}',
  KaishareAgentPartlyBlind: byReason('$labels.reason', 'Look up the reason in the runbook.'),
  KaishareEventsLost: "Check whether the agent's service account may create Events.",
  KaishareEvictionRefused: "Look up the result in the agent's log: a PodDisruptionBudget forbids the eviction, or a permission is missing.",

  KaishareWebhookDown: 'Get one replica running; until then replace kaishare.dev/mode=enforce by default where pods must start.',
  KaishareFailedOpen: 'Run kaishare doctor, and recreate the pods that were admitted unchanged.',
  KaisharePatchRefused: 'Set kaishare.dev/mode=off on the namespace, keep the manifest, and report the defect.',
  KaishareEnforceUnreachable: 'Get one replica running; until then replace kaishare.dev/mode=enforce by default where pods must start.',
  KaishareAdmissionPolicyFailed: 'Run kaishare doctor: restore a policy that it calls changed with helm upgrade.',
  KaishareOrderWrong: 'Restore the name of the renamed configuration: kai-00-kaishare sorts before those of KAI.',
  KaisharePolicyInvalid: "Correct the namespace's label; the Event PolicyInvalid lists what is allowed.",
  KaishareServingCertificateEnding: "Read what the webhook's log, or cert-manager's Certificate, says about the renewal.",
  KaishareCAEnding: "Read what the webhook's log, or cert-manager's Certificate, says about the renewal.",
  KaishareCertificateRotationFailing: "Restore the permission that the webhook's log names.",
  KaishareWebhookErrors: "Read the errors in the webhook's log.",
  KaishareReviewsShed: 'Give the webhook more CPU if its pods are throttled, otherwise more replicas.',
  KaishareWebhookFailureBurnFast: 'Run kaishare doctor, and look which stage of the webhook fails, or whether reviews never reach it.',
  KaishareWebhookFailureBurnSlow: 'Look for a single replica whose reviews fail, and delete its pod.',
  KaishareWebhookLatencyBurnFast: 'Give the webhook more CPU if its pods are throttled, otherwise more replicas.',
  KaishareWebhookLatencyBurnSlow: 'Give the webhook more CPU if its pods are throttled, otherwise more replicas.',

  KaishareWatchStale: 'Check the permissions of the service account, and the network between its pod and the API server.',

  KaishareAgentNotScraped: "Look for the agents among Prometheus' targets, also under the name of another job.",
  KaishareWebhookNotScraped: "Look for the webhook among Prometheus' targets, also under the name of another job.",
  KaishareLabelsLost: 'Set honor_labels: true for the job, or honorLabels: true on the endpoint of the monitor.',
}
