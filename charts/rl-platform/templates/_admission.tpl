{{- /* CEL of the admission policy of runs. Each part of it is written once and rendered twice, of
the new object and of the one before: an update is refused for what it adds, never for what was
there, so that running objects from before the policy can still be changed, ended and cleaned up.
Parameters: `o` (the object) and `s` (suffix of its variables: "" or "Before").
Words are those of files/faults.yaml. */ -}}

{{- /* A fault as a string: rule, place, what, fix. rule, case; at: CEL of the place; fill: CEL of
each word in braces. */ -}}
{{- define "rl-platform.say" -}}
{{- $words := index (.root.Files.Get "files/faults.yaml" | fromYaml) .rule -}}
{{- $text := printf "%s: {at}: %s; fix: %s" .rule (index $words.what .case) $words.fix | toJson -}}
{{- range $word, $cel := merge (dict "at" .at) (.fill | default dict) -}}
  {{- $text = replace (printf "{%s}" $word) (printf "\" + %s + \"" $cel) $text -}}
{{- end -}}
{{ $text }}
{{- end -}}

{{- define "rl-platform.cel.label" -}}
.?metadata.?labels[?{{ . | toJson }}].orValue("")
{{- end -}}

{{- /* Kind and name; a pod of a controller has only the beginning of one yet. */ -}}
{{- define "rl-platform.cel.name" -}}
string({{ .o }}.kind) + "/" + string({{ .o }}.metadata.?name.orValue({{ .o }}.metadata.?generateName.orValue("")))
{{- end -}}

{{- /* The spec of a RayCluster, wherever the kind has it. */ -}}
{{- define "rl-platform.cel.ray" -}}
{{ .o }}.kind == "RayCluster" ? {{ .o }}.?spec.orValue({}) :
{{ .o }}.kind == "RayJob" ? {{ .o }}.?spec.?rayClusterSpec.orValue({}) :
{{ .o }}.kind == "RayService" ? {{ .o }}.?spec.?rayClusterConfig.orValue({}) : dyn({})
{{- end -}}

{{- /* Templates of pods, each with the group that it is of. The submitter of a RayJob gets labels
from a template of its own only. */ -}}
{{- define "rl-platform.cel.templates" -}}
{{- $ray := printf "variables.ray%s" .s -}}
{{ .o }}.kind == "Pod" ? [{"role": dyn("pod"), "of": {{ .o }}}] :
{{ .o }}.kind == "JobSet" ? {{ .o }}.?spec.?replicatedJobs.orValue([]).map(j,
  {"role": dyn(j.?name.orValue("")), "of": j.?template.?spec.?template.orValue({})}) :
{{ .o }}.kind in ["RayCluster", "RayJob", "RayService"] ? (
  {{ $ray }}.?headGroupSpec.hasValue() ?
    [{"role": dyn("headgroup"), "of": {{ $ray }}.headGroupSpec.?template.orValue({})}] : []
  ) + {{ $ray }}.?workerGroupSpecs.orValue([]).map(g,
    {"role": dyn(g.?groupName.orValue("")), "of": g.?template.orValue({})}
  ) + (
  {{ .o }}.kind == "RayJob" && {{ .o }}.?spec.?submissionMode.orValue("K8sJobMode") == "K8sJobMode" ?
    [{"role": dyn("submitter"), "of": {{ .o }}.?spec.?submitterPodTemplate.orValue({})}] : []) :
{{ .o }}.kind == "CronJob" ?
  [{"role": dyn("pod"), "of": {{ .o }}.?spec.?jobTemplate.?spec.?template.orValue({})}] :
{{ .o }}.?spec.?template.hasValue() ? [{"role": dyn("pod"), "of": {{ .o }}.spec.template}] : []
{{- end -}}

{{- /* GPUs of some containers, each. Not a whole number or none at all: the API server's own check
of the kind says so. */ -}}
{{- define "rl-platform.cel.gpusOf" -}}
.map(c, string(
  c.?resources.?limits[?"nvidia.com/gpu"].or(c.?resources.?requests[?"nvidia.com/gpu"]).orValue(dyn("0")))
).filter(q, isQuantity(q)).map(q, quantity(q).asApproximateFloat())
{{- end -}}

{{- /* What is looked at in the pods. GPUs: all containers and sidecars together, or the greatest of
what comes before them; less than Kubernetes counts where sidecars and others mix, never more. */ -}}
{{- define "rl-platform.cel.pods" -}}
{{- $init := "t.of.?spec.?initContainers.orValue([])" -}}
variables.templates{{ .s }}.map(t, {
  "at": dyn(variables.name{{ .s }} + ({{ .o }}.kind == "Pod" ? "" : " " + string(t.role))),
  "role": dyn(t.role),
  "run": dyn(t.of{{ include "rl-platform.cel.label" "tandem.dev/run-id" }}),
  "queue": dyn(t.of{{ include "rl-platform.cel.label" "kai.scheduler/queue" }}),
  "scheduler": dyn(t.of.?spec.?schedulerName.orValue("default-scheduler")),
  "gpus": dyn([
    (t.of.?spec.?containers.orValue([]) +
      {{ $init }}.filter(c, c.?restartPolicy.orValue("") == "Always")
    ){{ include "rl-platform.cel.gpusOf" . | trim | nindent 6 | trim }}.sum(),
    ([0.0] + {{ $init }}{{ include "rl-platform.cel.gpusOf" . | trim | nindent 6 | trim }}).max()
  ].max())})
{{- end -}}

{{- /* An object that a controller made has the labels that this one gives it. */ -}}
{{- define "rl-platform.cel.owned" -}}
{{ .o }}.metadata.?ownerReferences.orValue([]).exists(r, r.?controller.orValue(false))
{{- end -}}

{{- /* On the object, or, where the object has it, on each kind of its pods. */ -}}
{{- define "rl-platform.faults.run" -}}
{{- $at := ` + " metadata.labels[tandem.dev/run-id]"` -}}
{{ .o }}.kind != "Pod" && !variables.owned{{ .s }} && variables.run{{ .s }} == "" ?
  [{{ include "rl-platform.say" (dict "root" .root "rule" "run-id-missing" "case" "none" "at" (print "variables.name" .s $at)) }}] :
  variables.pods{{ .s }}.filter(p, p.run == "").map(p, {{ include "rl-platform.say" (dict "root" .root "rule" "run-id-missing" "case" "none" "at" (print "p.at" $at)) }})
{{- end -}}

{{- /* Which pods name a queue at all; none on an object is enough where its pods name one. */ -}}
{{- define "rl-platform.faults.queueMissing" -}}
{{- $at := ` + " metadata.labels[kai.scheduler/queue]"` -}}
{{- $needs := `p.scheduler == "kai-scheduler" && ` -}}
{{- if eq .root.Values.admission.queueOf "all" }}{{ $needs = "" }}{{ end -}}
{{- $say := dict "root" .root "rule" "queue-missing" "case" "none" -}}
{{ .o }}.kind == "PodGroup" ? (variables.queue{{ .s }} != "" ? [] :
  [{{ include "rl-platform.say" (merge (dict "at" (printf `variables.name%s + " spec.queue"` .s)) $say) }}]) :
{{ .o }}.kind != "Pod" && variables.queue{{ .s }} == "" && variables.pods{{ .s }}.size() > 0 &&
variables.pods{{ .s }}.all(p, {{ $needs }}p.queue == "") ?
  [{{ include "rl-platform.say" (merge (dict "at" (print "variables.name" .s $at)) $say) }}] :
  variables.pods{{ .s }}.filter(p, {{ $needs }}p.queue == "").map(p,
    {{ include "rl-platform.say" (merge (dict "at" (print "p.at" $at)) $say) }})
{{- end -}}

{{- /* Queues that are named: of the object, and of pods that name another. */ -}}
{{- define "rl-platform.faults.queueWrong" -}}
{{- $tree := include "rl-platform.tree" .root | fromYaml -}}
{{- $at := ` + " metadata.labels[kai.scheduler/queue]"` -}}
{{- $leaves := $tree.leaves | join ", " | toJson -}}
([{"at": dyn(variables.name{{ .s }} + ({{ .o }}.kind == "PodGroup" ? " spec.queue" : " metadata.labels[kai.scheduler/queue]")),
   "queue": dyn(variables.queue{{ .s }})}] +
  variables.pods{{ .s }}.filter(p, p.queue != variables.queue{{ .s }}).map(p,
    {"at": dyn(p.at{{ $at }}), "queue": dyn(p.queue)})
).filter(c, c.queue != "").map(c,
  c.queue in {{ $tree.parents | toJson }} ? {{ include "rl-platform.say" (dict "root" .root "rule" "queue-not-a-leaf" "case" "parent" "at" "c.at" "fill" (dict "queue" "c.queue" "below" (printf "%s[c.queue]" ($tree.parents | toJson)) "leaves" $leaves)) }} :
  c.queue in {{ $tree.alone | toJson }} ? {{ include "rl-platform.say" (dict "root" .root "rule" "queue-not-a-leaf" "case" "root" "at" "c.at" "fill" (dict "queue" "c.queue" "leaves" $leaves)) }} :
  !(c.queue in {{ $tree.leaves | toJson }}) ? {{ include "rl-platform.say" (dict "root" .root "rule" "queue-unknown" "case" "unknown" "at" "c.at" "fill" (dict "queue" "c.queue" "leaves" $leaves)) }} :
  !(c.queue in variables.allowed) ? {{ include "rl-platform.say" (dict "root" .root "rule" "queue-not-of-namespace" "case" "foreign" "at" "c.at" "fill" (dict "queue" "c.queue" "namespace" "request.namespace" "queues" `variables.allowed.join(", ")`)) }} : ""
).filter(f, f != "")
{{- end -}}

{{- define "rl-platform.faults.gpusOutside" -}}
variables.pods{{ .s }}.filter(p, p.gpus > 0.0 && p.scheduler != "kai-scheduler").map(p,
  {{ include "rl-platform.say" (dict "root" .root "rule" "gpus-outside-queues" "case" "other" "at" "p.at" "fill" (dict "role" "p.role" "gpus" "string(p.gpus)" "scheduler" "p.scheduler")) }})
{{- end -}}

{{- define "rl-platform.faults.gpusOfNode" -}}
{{- $most := .root.Values.limits.gpusPerNode -}}
variables.pods{{ .s }}.filter(p, p.gpus > {{ $most }}.0).map(p,
  {{ include "rl-platform.say" (dict "root" .root "rule" "no-node-for-pod" "case" "gpus" "at" "p.at" "fill" (dict "role" "p.role" "gpus" "string(p.gpus)" "most" ($most | toString | toJson))) }})
{{- end -}}

{{- /* What is to be kept together: as annotations say it of the object, of a replicatedJob and of
pods, and as a PodGroup does. */ -}}
{{- define "rl-platform.cel.placements" -}}
(
  [{"at": dyn(variables.name{{ .s }}), "of": {{ .o }}.metadata.?annotations.orValue({})}] +
  ({{ .o }}.kind != "JobSet" ? [] : {{ .o }}.?spec.?replicatedJobs.orValue([]).map(j, {
    "at": dyn(variables.name{{ .s }} + " " + string(j.?name.orValue(""))),
    "of": j.?template.?metadata.?annotations.orValue({})})) +
  ({{ .o }}.kind == "Pod" ? [] : variables.templates{{ .s }}.map(t, {
    "at": dyn(variables.name{{ .s }} + " " + string(t.role)),
    "of": t.of.?metadata.?annotations.orValue({})}))
).map(a, {
  "at": dyn(a.at),
  "topology": dyn(a.of[?"kai.scheduler/topology"].orValue("")),
  "required": dyn(a.of[?"kai.scheduler/topology-required-placement"].orValue("")),
  "preferred": dyn(a.of[?"kai.scheduler/topology-preferred-placement"].orValue(""))}) +
({{ .o }}.kind != "PodGroup" ? [] : (
  [{"at": dyn("root"), "of": {{ .o }}.?spec.?topologyConstraint.orValue({})}] +
  {{ .o }}.?spec.?subGroups.orValue([]).map(g, {
    "at": dyn(g.?name.orValue("")), "of": g.?topologyConstraint.orValue({})})
).map(g, {
  "at": dyn(variables.name{{ .s }} + " " + string(g.at)),
  "topology": dyn(g.of.?topology.orValue("")),
  "required": dyn(g.of.?requiredTopologyLevel.orValue("")),
  "preferred": dyn(g.of.?preferredTopologyLevel.orValue(""))}))
{{- end -}}

{{- define "rl-platform.faults.topology" -}}
{{- $all := . -}}
{{- $levels := include "rl-platform.topologies" .root | fromYaml -}}
{{- $known := $levels | toJson -}}
{{- $words := dict }}{{ range $name, $of := $levels }}{{ $_ := set $words $name ($of | join ", ") }}{{ end -}}
variables.placements{{ .s }}.filter(t, t.topology != "" && !(t.topology in {{ $known }})).map(t,
  {{ include "rl-platform.say" (dict "root" .root "rule" "unknown-topology" "case" "topology" "at" "t.at" "fill" (dict "topology" "t.topology" "topologies" (keys $levels | sortAlpha | join ", " | toJson))) }})
{{- range $level := list "t.required" "t.preferred" }} +
variables.placements{{ $all.s }}.filter(t,
  t.topology in {{ $known }} && {{ $level }} != "" && !({{ $level }} in {{ $known }}[t.topology])).map(t,
  {{ include "rl-platform.say" (dict "root" $all.root "rule" "unknown-topology" "case" "level" "at" "t.at" "fill" (dict "topology" "t.topology" "level" $level "levels" (printf "%s[t.topology]" ($words | toJson)))) }})
{{- end }}
{{- end -}}

{{- /* The parts that these values ask for, as CEL lists of faults. A queue of another scheduler's
(Kueue: label kueue.x-k8s.io/queue-name) would be a part of its own here. */ -}}
{{- define "rl-platform.cel.faults" -}}
{{- $parts := list "run" -}}
{{- with .root.Values -}}
  {{- if .queues.enabled }}{{ $parts = concat $parts (list "queueMissing" "queueWrong") }}{{ end -}}
  {{- if and .queues.enabled (eq .admission.queueOf "all") }}{{ $parts = append $parts "gpusOutside" }}{{ end -}}
  {{- if .limits.gpusPerNode }}{{ $parts = append $parts "gpusOfNode" }}{{ end -}}
  {{- if and .queues.enabled .admission.topologies }}{{ $parts = append $parts "topology" }}{{ end -}}
{{- end -}}
{{- $all := . -}}
{{- $lists := list -}}
{{- range $parts }}{{ $lists = append $lists (printf "(%s)" (include (print "rl-platform.faults." .) $all)) }}{{ end -}}
{{ $lists | join " +\n" }}
{{- end -}}

{{- /* The tree as policies need it: leaves; parents, each with what is below it; roots without. */ -}}
{{- define "rl-platform.tree" -}}
{{- $below := dict -}}
{{- range .Values.queues.tree }}
  {{- if .parent }}{{ $_ := set $below .parent (append (index $below .parent | default list) .name) }}{{ end -}}
{{- end -}}
{{- $parents := dict }}{{ $leaves := list }}{{ $alone := list -}}
{{- range .Values.queues.tree -}}
  {{- if hasKey $below .name }}{{ $_ := set $parents .name (index $below .name | sortAlpha | join ", ") }}
  {{- else if .parent }}{{ $leaves = append $leaves .name }}
  {{- else }}{{ $alone = append $alone .name }}
  {{- end -}}
{{- end -}}
{{ dict "leaves" ($leaves | sortAlpha) "parents" $parents "alone" $alone | toJson }}
{{- end -}}

{{- /* Namespaces of runs, each with its queues. */ -}}
{{- define "rl-platform.namespaces" -}}
{{ merge (dict .Values.namespace .Values.queues.runs) .Values.queues.namespaces | toJson }}
{{- end -}}

{{- /* Topologies that there are, each with its levels. */ -}}
{{- define "rl-platform.topologies" -}}
{{- $levels := dict -}}
{{- range $name, $topology := .Values.topologies }}{{ if $topology.enabled }}{{ $_ := set $levels $name $topology.levels }}{{ end }}{{ end -}}
{{ $levels | toJson }}
{{- end -}}
