{{- /* What no schema can say of the values. Fails with every fault at once, each with the path of
the value, the value, what it breaks and how to mend it. Amounts of -1 are without a limit. */ -}}
{{- define "rl-platform.check" -}}
{{- $faults := list -}}
{{- $tree := .Values.queues.tree -}}
{{- $known := dict -}}
{{- $places := dict -}}
{{- range $at, $queue := $tree -}}
  {{- $_ := set $known .name . -}}
  {{- if not (hasKey $places .name) }}{{ $_ := set $places .name $at }}{{ end -}}
{{- end -}}
{{- $children := dict -}}
{{- range $tree -}}
  {{- if .parent -}}
    {{- $_ := set $children .parent (append (index $children .parent | default list) .) -}}
  {{- end -}}
{{- end -}}

{{- $looped := dict -}}
{{- range $at, $queue := $tree -}}
  {{- $path := printf "queues.tree[%d]" $at -}}
  {{- if ne $at (int (index $places .name)) -}}
    {{- $faults = append $faults (printf "%s.name: %s is the name of queues.tree[%d] already; a name is given once; rename one of them" $path .name (int (index $places .name))) -}}
  {{- end -}}
  {{- if and .parent (not (hasKey $known .parent)) -}}
    {{- $faults = append $faults (printf "%s.parent: %s is no queue of the tree (%s); name one of these, or add it" $path .parent (keys $known | sortAlpha | join ", ")) -}}
  {{- end -}}

  {{- /* Up to the root, in as many steps as there are queues. A loop is told once. */ -}}
  {{- $way := list .name -}}
  {{- $above := .parent -}}
  {{- range until (len $tree) -}}
    {{- if and $above (hasKey $known $above) (not (has $above $way)) -}}
      {{- $way = append $way $above -}}
      {{- $above = (index $known $above).parent -}}
    {{- end -}}
  {{- end -}}
  {{- if eq (toString $above) .name -}}
    {{- $ring := $way | sortAlpha | join "," -}}
    {{- if not (hasKey $looped $ring) -}}
      {{- $_ := set $looped $ring true -}}
      {{- $faults = append $faults (printf "%s.parent: %s closes a loop: %s; a queue is below itself in no tree; take one of the parents away" $path .parent (append $way .name | join " -> ")) -}}
    {{- end -}}
  {{- end -}}

  {{- range $kind := list "gpu" "cpu" "memory" -}}
    {{- $quota := index $queue.quota $kind | float64 -}}
    {{- $limit := index $queue.limit $kind | float64 -}}
    {{- if and (ge $limit 0.0) (or (lt $quota 0.0) (gt $quota $limit)) -}}
      {{- $faults = append $faults (printf "%s.quota.%s: %s is more than the queue's own limit of %s (queues.tree[%d].limit.%s); promise at most the limit, or raise that" $path $kind (include "rl-platform.amount" $quota) (include "rl-platform.amount" $limit) $at $kind) -}}
    {{- end -}}
    {{- range $field := list "quota" "limit" -}}
      {{- $amount := index $queue $field $kind | float64 -}}
      {{- if and (ne $kind "gpu") (gt $amount 0.0) (lt $amount 1000.0) -}}
        {{- $unit := ternary "thousandths of a core, less than one; 64 cores are 64000" "megabytes, less than one GB; 64 GB are 64000" (eq $kind "cpu") -}}
        {{- $faults = append $faults (printf "%s.%s.%s: %s is counted in %s; write at least 1000, 0 for nothing or -1 for no limit" $path $field $kind (include "rl-platform.amount" $amount) $unit) -}}
      {{- end -}}
    {{- end -}}
    {{- $below := index $children $queue.name | default list -}}
    {{- $sum := 0.0 -}}
    {{- $endless := list -}}
    {{- $shares := list -}}
    {{- range $below -}}
      {{- $share := index .quota $kind | float64 -}}
      {{- if lt $share 0.0 }}{{ $endless = append $endless .name }}{{ else }}{{ $sum = addf $sum $share }}{{ end -}}
      {{- $shares = append $shares (printf "%s %s" .name (include "rl-platform.amount" $share)) -}}
      {{- $most := index .limit $kind | float64 -}}
      {{- if and (ge $limit 0.0) (gt $most $limit) -}}
        {{- $faults = append $faults (printf "queues.tree[%d].limit.%s: %s is more than parent %s can have, %s (%s.limit.%s); lower it, or write -1: the parent's counts then" (int (index $places .name)) $kind (include "rl-platform.amount" $most) $queue.name (include "rl-platform.amount" $limit) $path $kind) -}}
      {{- end -}}
    {{- end -}}
    {{- if and (ge $quota 0.0) $endless -}}
      {{- $faults = append $faults (printf "%s.quota.%s: %s of %s cannot be shared out: %s; no child may have -1 (%s) where the parent has a number; give each a number, or the parent -1" $path $kind (include "rl-platform.amount" $quota) $queue.name ($shares | join " + ") ($endless | join ", ")) -}}
    {{- else if and (ge $quota 0.0) (gt $sum $quota) -}}
      {{- $faults = append $faults (printf "%s.quota.%s: %s of %s is less than its children are promised: %s = %s; raise it to %s, or lower theirs" $path $kind (include "rl-platform.amount" $quota) $queue.name ($shares | join " + ") (include "rl-platform.amount" $sum) (include "rl-platform.amount" $sum)) -}}
    {{- end -}}
  {{- end -}}
{{- end -}}

{{- $leaves := list -}}
{{- range $tree -}}
  {{- if and .parent (not (hasKey $children .name)) }}{{ $leaves = append $leaves .name }}{{ end -}}
{{- end -}}
{{- $leaves = $leaves | uniq | sortAlpha | join ", " | default "none" -}}
{{- range $place, $names := merge (dict "runs" .Values.queues.runs) (include "rl-platform.placed" . | fromYaml) -}}
{{- range $at, $name := $names -}}
  {{- $path := printf "queues.%s[%d]" $place $at -}}
  {{- if not (hasKey $known $name) -}}
    {{- $faults = append $faults (printf "%s: %s is no queue of the tree; runs need a leaf; name one of: %s" $path $name $leaves) -}}
  {{- else if hasKey $children $name -}}
    {{- $names := list }}{{ range index $children $name }}{{ $names = append $names .name }}{{ end -}}
    {{- $faults = append $faults (printf "%s: %s is the parent of %s; KAI leaves pods of such a queue Pending; name one of the leaves (%s), or give those another parent" $path $name ($names | join ", ") $leaves) -}}
  {{- else if not (index $known $name).parent -}}
    {{- $faults = append $faults (printf "%s: %s has no parent; KAI leaves pods of a root Pending; name one of the leaves (%s), or give it a parent" $path $name $leaves) -}}
  {{- end -}}
{{- end -}}
{{- end -}}
{{- range $name, $queues := .Values.queues.namespaces -}}
  {{- if eq $name $.Values.namespace -}}
    {{- $faults = append $faults (printf "queues.namespaces.%s: it is the namespace of the chart's own, whose queues are queues.runs; put them there" $name) -}}
  {{- else if or (eq $name $.Release.Namespace) (hasPrefix "kube-" $name) -}}
    {{- $faults = append $faults (printf "queues.namespaces.%s: pods of the cluster itself are in it, which are no runs and would be refused; give the runs a namespace of theirs" $name) -}}
  {{- end -}}
{{- end -}}
{{- if and (has "Deny" .Values.admission.validationActions) (has "Warn" .Values.admission.validationActions) -}}
  {{- $faults = append $faults (printf "admission.validationActions: %s: the API server takes either Deny or Warn; write one of them, with or without Audit" (.Values.admission.validationActions | join ", ")) -}}
{{- end -}}

{{- range $name, $topology := .Values.topologies -}}
  {{- range $at, $label := $topology.levels -}}
    {{- if and (eq $label "kubernetes.io/hostname") (lt $at (sub (len $topology.levels) 1 | int)) -}}
      {{- $faults = append $faults (printf "topologies.%s.levels[%d]: %s stands above %s; a host is the narrowest level; put it last" $name $at $label (slice $topology.levels (add $at 1 | int) | join ", ")) -}}
    {{- end -}}
  {{- end -}}
{{- end -}}

{{- /* The rest looks up names that have to mean something. */ -}}
{{- if and .Values.queues.kueue.enabled (not $faults) -}}
  {{- $faults = include "rl-platform.kueueFaults" . | fromJsonArray -}}
{{- end -}}

{{- if $faults -}}
  {{- fail (printf "\n%d of the values mean nothing together:\n  - %s\n" (len $faults) ($faults | join "\n  - ")) -}}
{{- end -}}
{{- end -}}

{{- /* Lists of queues by where they are in the values. */ -}}
{{- define "rl-platform.placed" -}}
{{- $lists := dict -}}
{{- range $name, $queues := .Values.queues.namespaces }}{{ $_ := set $lists (print "namespaces." $name) $queues }}{{ end -}}
{{ $lists | toJson }}
{{- end -}}

{{- /* A number as a person writes it: 64, not 64.000000 or 6.4e+01. */ -}}
{{- define "rl-platform.amount" -}}
{{ . | toJson }}
{{- end -}}
