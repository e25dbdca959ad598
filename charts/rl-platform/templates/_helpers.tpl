{{- define "rl-platform.labels" -}}
app.kubernetes.io/name: rl-platform
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/part-of: tandem
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- /* Resources of a KAI queue from quota, limit and overQuotaWeight of one entry. */ -}}
{{- define "rl-platform.queueResources" -}}
{{- $queue := . -}}
{{- range $kind := list "gpu" "cpu" "memory" }}
{{ $kind }}:
  quota: {{ index $queue.quota $kind }}
  limit: {{ index $queue.limit $kind }}
  overQuotaWeight: {{ $queue.overQuotaWeight | default 1 }}
{{- end }}
{{- end }}
