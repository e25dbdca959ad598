{{- define "rl-platform.labels" -}}
app.kubernetes.io/name: rl-platform
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/part-of: tandem
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- /* Resources of a KAI queue. Always whole: KAI reads a limit that is not there as none at all.
JSON, since a template would print 1000000 as 1e+06. */ -}}
{{- define "rl-platform.queueResources" -}}
{{- $queue := . -}}
{{- $weights := $queue.overQuotaWeight | default dict -}}
{{- range $kind := list "gpu" "cpu" "memory" }}
{{ $kind }}:
  quota: {{ index $queue.quota $kind | toJson }}
  limit: {{ index $queue.limit $kind | toJson }}
  overQuotaWeight: {{ if hasKey $weights $kind }}{{ index $weights $kind | toJson }}{{ else }}1{{ end }}
{{- end }}
{{- end }}
