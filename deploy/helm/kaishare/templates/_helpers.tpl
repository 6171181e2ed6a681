{{- /* `true` if the webhook runs, else empty. */ -}}
{{- define "kaishare.serves" -}}
{{- if and .Values.webhook.enabled (ne .Values.webhook.kind "policy") }}true{{ end -}}
{{- end }}

{{- /* `true` if admission policies decide about pods, else empty. */ -}}
{{- define "kaishare.hasPolicies" -}}
{{- if and .Values.webhook.enabled (ne .Values.webhook.kind "webhook") }}true{{ end -}}
{{- end }}

{{- /*
`true` if KAI's release has a property, else `false`. The property is a list of releases: the oldest one with it, and the
first one of later lines. A pre-release of any of these lacks it.
*/ -}}
{{- define "kaishare.kaiHas" -}}
{{- $release := regexFind "[0-9]+[.][0-9]+[.][0-9]+" .version -}}
{{- if not $release -}}
false
{{- else if and (contains "-" .version) (has $release .since) -}}
false
{{- else -}}
{{ semverCompare (printf ">=%s" (first .since)) $release }}
{{- end -}}
{{- end }}

{{- /* Age of an object in seconds; 0 for none. */ -}}
{{- define "kaishare.age" -}}
{{- with . -}}
{{ sub (now | unixEpoch | int64) (toDate "2006-01-02T15:04:05Z" .metadata.creationTimestamp | unixEpoch | int64) }}
{{- else -}}
0
{{- end -}}
{{- end }}

{{- define "kaishare.labels" -}}
app.kubernetes.io/name: kaishare
app.kubernetes.io/component: {{ .component }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end }}

{{- /* A list of names as CEL. */ -}}
{{- define "kaishare.celList" -}}
[{{ range $index, $name := . }}{{ if $index }}, {{ end }}'{{ $name }}'{{ end }}]
{{- end }}

{{- /* Metadata of a policy of the guard, with the digest by which `kaishare doctor` knows it. */ -}}
{{- define "kaishare.guardMetadata" -}}
name: kaishare-guard-{{ .name }}
labels: {{- include "kaishare.labels" (dict "root" .root "component" "guard") | nindent 2 }}
annotations:
  kaishare.dev/digest: {{ .digest | quote }}
{{- end }}

{{- /* Labels of selectors, which are immutable. */ -}}
{{- define "kaishare.selector" -}}
app.kubernetes.io/name: kaishare
app.kubernetes.io/component: {{ . }}
{{- end }}

{{- define "kaishare.image" -}}
{{- if .image.digest -}}
{{ printf "%s@%s" .image.repository .image.digest }}
{{- else -}}
{{ printf "%s:%s" .image.repository (.image.tag | default .root.Chart.AppVersion) }}
{{- end }}
{{- end }}

{{- define "kaishare.pullSecrets" -}}
{{- with .Values.imagePullSecrets -}}
imagePullSecrets:
  {{- range . }}
  - name: {{ if kindIs "map" . }}{{ .name | toYaml }}{{ else }}{{ . | toYaml }}{{ end }}
  {{- end }}
{{- end }}
{{- end }}

{{- /* Labels of a pod: the chart's own, which selectors use, take precedence over podLabels. */ -}}
{{- define "kaishare.podLabels" -}}
{{- include "kaishare.selector" .component }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
{{- with omit (.labels | default dict) "app.kubernetes.io/name" "app.kubernetes.io/component" "app.kubernetes.io/version" }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /* Rules of a service that asks its readers for tokens. */ -}}
{{- define "kaishare.reviews" }}
{{- if .Values.authentication.enabled }}
  - apiGroups: [authentication.k8s.io]
    resources: [tokenreviews]
    verbs: [create]
  - apiGroups: [authorization.k8s.io]
    resources: [subjectaccessreviews]
    verbs: [create]
{{- end }}
{{- end }}

{{- /* Subjects of a RoleBinding, from a list of kind, name and namespace. */ -}}
{{- define "kaishare.subjects" -}}
{{- range . }}
- kind: {{ .kind }}
  name: {{ .name | quote }}
  {{- if eq .kind "ServiceAccount" }}
  namespace: {{ .namespace | toYaml }}
  {{- else }}
  apiGroup: rbac.authorization.k8s.io
  {{- end }}
{{- end }}
{{- end }}

{{- /* Fields of a PodMonitor's endpoint for TLS and tokens. */ -}}
{{- define "kaishare.scrape" -}}
{{- with .root.Values.monitors }}
{{- if $.tlsSecret }}
scheme: https
tlsConfig:
  {{- if .tlsConfig }}
  {{- merge dict .tlsConfig (dict "serverName" $.serverName) | toYaml | nindent 2 }}
  {{- else }}
  insecureSkipVerify: true
  {{- end }}
{{- end }}
{{- if $.root.Values.authentication.enabled }}
authorization:
  type: Bearer
  credentials:
    {{- toYaml .tokenSecret | nindent 4 }}
{{- end }}
{{- end }}
{{- end }}

{{- /* Excluded namespaces, as a JSON list. */ -}}
{{- define "kaishare.excluded" -}}
{{- concat .Values.excludedNamespaces (list .Release.Namespace .Values.agent.namespace) | uniq | sortAlpha | toJson -}}
{{- end }}

{{- /* Namespaces whose pods the agent does not flag, as a JSON list. */ -}}
{{- define "kaishare.agentExcluded" -}}
{{- concat (include "kaishare.excluded" . | fromJsonArray) (default list .Values.agent.excludedNamespaces) | uniq | sortAlpha | toJson -}}
{{- end }}

{{- /* A duration such as 30s, in milliseconds. */ -}}
{{- define "kaishare.milliseconds" -}}
{{- $worth := dict "ms" 1 "s" 1000 "m" 60000 "h" 3600000 -}}
{{- mul (regexFind "^[0-9]+" . | int64) (get $worth (regexFind "[a-z]+$" .)) -}}
{{- end }}

{{- /* `true` if pods of the agent with hostPID run in the release's namespace, else empty. */ -}}
{{- define "kaishare.agentIsBeside" -}}
{{- if and .Values.agent.enabled (not .Values.agent.simulated) (eq .Values.agent.namespace .Release.Namespace) }}true{{ end -}}
{{- end }}

{{- define "kaishare.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "kaishare.containerSecurity" -}}
allowPrivilegeEscalation: false
capabilities:
  drop: [ALL]
  {{- with .add }}
  add: {{ toJson . }}
  {{- end }}
readOnlyRootFilesystem: true
{{- end }}

{{- /* Scheduling fields of a pod, from one service's values. */ -}}
{{- define "kaishare.placement" -}}
{{- with .priorityClassName -}}
priorityClassName: {{ . | toYaml }}
{{- end }}
{{- with .nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- /* Keeps the agent off nodes whose driver the GPU operator is replacing, by the operator's label. */ -}}
{{- define "kaishare.agentAffinity" -}}
nodeAffinity:
  requiredDuringSchedulingIgnoredDuringExecution:
    nodeSelectorTerms:
      - matchExpressions:
          - key: nvidia.com/gpu-driver-upgrade-state
            operator: NotIn
            values: [pod-deletion-required, drain-required, pod-restart-required]
{{- end }}

{{- /* A webhook's clientConfig. It lacks caBundle where another component writes it, so that an upgrade keeps the value. */ -}}
{{- define "kaishare.clientConfig" -}}
clientConfig:
  service:
    namespace: {{ .root.Release.Namespace | toYaml }}
    name: kaishare-webhook
    path: {{ .path }}
    port: {{ .root.Values.webhook.servicePort }}
  {{- with .root.Values.webhook.certificates }}
  {{- if eq .mode "secret" }}
  caBundle: {{ required "webhook.certificates.caBundle is empty; mode secret needs the CA's PEM certificates" .caBundle | b64enc }}
  {{- end }}
  {{- end }}
{{- end }}

{{- /* Common fields of all three webhooks. */ -}}
{{- define "kaishare.webhookCommon" -}}
admissionReviewVersions: [v1]
matchPolicy: Equivalent
sideEffects: None
timeoutSeconds: 5
{{- end }}

{{- define "kaishare.configurationAnnotations" -}}
{{- if eq .Values.webhook.certificates.mode "cert-manager" }}
annotations:
  cert-manager.io/inject-ca-from: {{ .Release.Namespace }}/kaishare-webhook
{{- end }}
{{- end }}

{{- /*
Numbers in the expressions of alerts, by name: the defaults of files/alerts/rules.yaml, alerts.slo, and overrides. This
release's services are expected to be scraped. cert-manager renews a certificate renewBefore its end, so the alert fires at half of that time at the latest. Fails with one sentence for an unknown name and for other than a number.
*/ -}}
{{- define "kaishare.alertNumbers" -}}
{{- $file := .Files.Get "files/alerts/rules.yaml" | fromYaml }}
{{- $numbers := $file.numbers }}
{{- $alerts := list }}
{{- range $file.groups }}{{ range .rules }}{{ if .alert }}{{ $alerts = append $alerts .alert }}{{ end }}{{ end }}{{ end }}
{{- $extra := .Values.alerts.alertLabels | default dict }}
{{- range $key, $number := .Values.alerts.slo }}
{{- $numbers = set $numbers (printf "slo.%s" $key) $number }}
{{- end }}
{{- $numbers = set $numbers "expected.agent" (ternary 1 0 .Values.agent.enabled) }}
{{- $numbers = set $numbers "expected.webhook" (ternary 1 0 (eq (include "kaishare.serves" .) "true")) }}
{{- with .Values.webhook.certificates }}
{{- if eq .mode "cert-manager" }}
{{- $name := "KaishareServingCertificateEnding.days" }}
{{- $half := divf (include "kaishare.milliseconds" .certManager.renewBefore | int64) 2 86400000 }}
{{- $numbers = set $numbers $name (minf (get $numbers $name) $half) }}
{{- end }}
{{- end }}
{{- range $label := list "severity" "alertname" }}
{{- if hasKey $extra $label }}
{{- fail (printf "alerts.alertLabels.%s: each alert has this label; set the severity of single alerts in alerts.overrides" $label) }}
{{- end }}
{{- end }}
{{- range $alert, $override := .Values.alerts.overrides }}
{{- if not (has $alert $alerts) }}
{{- fail (printf "alerts.overrides.%s: there is no such alert; deploy/alerts/README.md lists them" $alert) }}
{{- end }}
{{- $keys := list "enabled" "for" "keepFiringFor" "severity" }}
{{- range $name, $_ := $file.numbers }}
{{- if hasPrefix (printf "%s." $alert) $name }}{{ $keys = append $keys (trimPrefix (printf "%s." $alert) $name) }}{{ end }}
{{- end }}
{{- range $key, $value := $override }}
{{- if not (has $key $keys) }}
{{- fail (printf "alerts.overrides.%s.%s: there is no such setting; this alert has %s" $alert $key (join ", " $keys)) }}
{{- end }}
{{- if hasKey $file.numbers (printf "%s.%s" $alert $key) }}
{{- $numbers = set $numbers (printf "%s.%s" $alert $key) $value }}
{{- end }}
{{- end }}
{{- end }}
{{- range $name, $number := $numbers }}
{{- if not (has (kindOf $number) (list "float64" "int64" "int")) }}
{{- fail (printf "alerts: %s is not a number" $name) }}
{{- end }}
{{- end }}
{{- toYaml $numbers }}
{{- end }}
