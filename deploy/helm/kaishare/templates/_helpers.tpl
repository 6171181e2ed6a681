{{- define "kaishare.labels" -}}
app.kubernetes.io/name: kaishare
app.kubernetes.io/component: {{ .component }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
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
  - name: {{ if kindIs "map" . }}{{ .name }}{{ else }}{{ . }}{{ end }}
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
  # why: finds the user of a reader's token
  # only: authentication.enabled=true
  - apiGroups: [authentication.k8s.io]
    resources: [tokenreviews]
    verbs: [create]
  # why: asks whether a reader has the right to read a path
  # only: authentication.enabled=true
  - apiGroups: [authorization.k8s.io]
    resources: [subjectaccessreviews]
    verbs: [create]
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
priorityClassName: {{ . }}
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

{{- /* A webhook's clientConfig. It lacks caBundle where another component writes it, so that an upgrade keeps the value. */ -}}
{{- define "kaishare.clientConfig" -}}
clientConfig:
  service:
    namespace: {{ .root.Release.Namespace }}
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
