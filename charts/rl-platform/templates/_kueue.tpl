{{- /* What each queue of the tree is to Kueue, as JSON: {<queue>: {<kind>: {nominal, borrow?}}}.
A leaf is a ClusterQueue, all above are Cohorts. Kueue shares out what has been promised to
somebody and is idle, so every amount belongs to one queue: of a parent's quota what its children
are not promised, of GPUs without a number (-1) what of the capacity nobody else is promised.
CPU and memory without a number are a million cores and a million GB: Kueue has no "unlimited". */ -}}
{{- define "rl-platform.kueueShares" -}}
{{- $tree := .Values.queues.tree -}}
{{- $known := dict -}}
{{- $children := dict -}}
{{- range $tree -}}
  {{- $_ := set $known .name . -}}
  {{- if .parent }}{{ $_ := set $children .parent (append (index $children .parent | default list) .) }}{{ end -}}
{{- end -}}
{{- $rest := .Values.queues.kueue.capacity.gpu | float64 -}}
{{- $taken := false -}}
{{- range $tree -}}
  {{- $quota := .quota.gpu | float64 -}}
  {{- $above := -1.0 -}}
  {{- if .parent }}{{ with index $known .parent }}{{ $above = .quota.gpu | float64 }}{{ end }}{{ end -}}
  {{- if and (ge $quota 0.0) (lt $above 0.0) }}{{ $rest = subf $rest $quota }}{{ end -}}
  {{- if and (lt $quota 0.0) .parent (not (hasKey $children .name)) }}{{ $taken = true }}{{ end -}}
{{- end -}}
{{- $shares := dict -}}
{{- range $queue := $tree -}}
  {{- $leaf := and $queue.parent (not (hasKey $children $queue.name)) -}}
  {{- $of := dict -}}
  {{- range $kind := list "gpu" "cpu" "memory" -}}
    {{- $quota := index $queue.quota $kind | float64 -}}
    {{- $limit := index $queue.limit $kind | float64 -}}
    {{- $nominal := $quota -}}
    {{- if ge $quota 0.0 -}}
      {{- range index $children $queue.name | default list }}{{ $nominal = subf $nominal (index .quota $kind | float64) }}{{ end -}}
    {{- else if and $leaf (eq $kind "gpu") -}}
      {{- $nominal = $rest -}}
    {{- else if $leaf -}}
      {{- $nominal = 1e9 -}}
    {{- else if and (eq $kind "gpu") (not $queue.parent) (not $taken) -}}
      {{- $nominal = $rest -}}
      {{- $taken = true -}}
    {{- else -}}
      {{- $nominal = 0.0 -}}
    {{- end -}}
    {{- $share := dict "nominal" $nominal -}}
    {{- if and $queue.parent (ge $limit 0.0) }}{{ $_ := set $share "borrow" (subf $limit $quota) }}{{ end -}}
    {{- $_ := set $of $kind $share -}}
  {{- end -}}
  {{- $_ := set $shares $queue.name $of -}}
{{- end -}}
{{- $shares | toJson -}}
{{- end -}}

{{- /* A quantity as Kubernetes itself writes it (64000m is 64, 1000000G is 1P). Kueue writes its
objects whole, quantities in this form too; any other would be its own from then on, and the next
sync a conflict over it. */ -}}
{{- define "rl-platform.quantity" -}}
{{- $amount := index . 0 | int64 -}}
{{- $suffixes := list "m" "" "k" "M" "G" "T" "P" "E" -}}
{{- $at := index . 1 -}}
{{- range until 7 -}}
  {{- if and $amount (lt $at 7) (eq (mod $amount 1000) 0) }}{{ $amount = div $amount 1000 }}{{ $at = add $at 1 | int }}{{ end -}}
{{- end -}}
{{ if $amount }}{{ $amount }}{{ index $suffixes $at }}{{ else }}0{{ end }}
{{- end -}}

{{- /* The resources of a ClusterQueue or a Cohort, one flavor for all nodes. */ -}}
{{- define "rl-platform.kueueResources" -}}
{{- $shares := . -}}
resourceGroups:
  - coveredResources: [cpu, memory, nvidia.com/gpu] # in the order of what follows
    flavors:
      - name: tandem
        resources:
        {{- range $resource, $of := dict "nvidia.com/gpu" (list "gpu" 1) "cpu" (list "cpu" 0) "memory" (list "memory" 3) }}
          {{- $share := index $shares (first $of) }}
          - name: {{ $resource }}
            nominalQuota: {{ include "rl-platform.quantity" (list $share.nominal (last $of)) | quote }}
            {{- if hasKey $share "borrow" }}
            borrowingLimit: {{ include "rl-platform.quantity" (list $share.borrow (last $of)) | quote }}
            {{- end }}
        {{- end }}
{{- end -}}

{{- /* What of the tree Kueue cannot be told: a JSON list of faults. */ -}}
{{- define "rl-platform.kueueFaults" -}}
{{- $faults := list -}}
{{- $tree := .Values.queues.tree -}}
{{- $parents := dict -}}
{{- $quotas := dict -}}
{{- range $tree -}}
  {{- if .parent }}{{ $_ := set $parents .parent true }}{{ end -}}
  {{- $_ := set $quotas .name (.quota.gpu | float64) -}}
{{- end -}}
{{- $capacity := .Values.queues.kueue.capacity.gpu | float64 -}}
{{- $promised := 0.0 -}}
{{- $promises := list -}}
{{- $endless := list -}}
{{- range $at, $queue := $tree -}}
  {{- $path := printf "queues.tree[%d]" $at -}}
  {{- $quota := .quota.gpu | float64 -}}
  {{- $above := -1.0 -}}
  {{- if and .parent (hasKey $quotas .parent) }}{{ $above = index $quotas .parent }}{{ end -}}
  {{- if and (ge $quota 0.0) (lt $above 0.0) -}}
    {{- $promised = addf $promised $quota -}}
    {{- $promises = append $promises (printf "%s %s" .name (include "rl-platform.amount" $quota)) -}}
  {{- end -}}
  {{- if and (lt $quota 0.0) .parent (not (hasKey $parents .name)) -}}
    {{- $endless = append $endless (printf "%s.quota.gpu of %s" $path .name) -}}
  {{- end -}}
  {{- range $field := list "quota" "limit" -}}
    {{- $amount := (index $queue $field).gpu | float64 -}}
    {{- if ne $amount (floor $amount) -}}
      {{- $faults = append $faults (printf "%s.%s.gpu: %s is part of a GPU; Kueue counts whole ones; write %s or %s" $path $field (include "rl-platform.amount" $amount) (include "rl-platform.amount" (floor $amount)) (include "rl-platform.amount" (ceil $amount))) -}}
    {{- end -}}
  {{- end -}}
  {{- if not .parent -}}
    {{- range $kind := list "gpu" "cpu" "memory" -}}
      {{- $most := index $queue.limit $kind | float64 -}}
      {{- $always := index $queue.quota $kind | float64 -}}
      {{- if and (ge $most 0.0) (gt $most $always) (ge $always 0.0) -}}
        {{- $faults = append $faults (printf "%s.limit.%s: %s of root %s is more than its quota of %s; with Kueue a root has nobody to borrow from; make both the same" $path $kind (include "rl-platform.amount" $most) $queue.name (include "rl-platform.amount" $always)) -}}
      {{- end -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- if gt (len $endless) 1 -}}
  {{- $faults = append $faults (printf "%s: -1 each; Kueue can give what is not promised to others to one queue only; give all but one a number" ($endless | join ", ")) -}}
{{- end -}}
{{- if gt $promised $capacity -}}
  {{- $faults = append $faults (printf "queues.kueue.capacity.gpu: %s is less than is promised: %s = %s; write how many GPUs the cluster has, or promise less" (include "rl-platform.amount" $capacity) ($promises | join " + ") (include "rl-platform.amount" $promised)) -}}
{{- else if and $endless (eq $promised $capacity) -}}
  {{- $faults = append $faults (printf "queues.kueue.capacity.gpu: %s leaves nothing for %s, which is -1; Kueue has no quota without a number; write how many GPUs the cluster has" (include "rl-platform.amount" $capacity) ($endless | join ", ")) -}}
{{- end -}}
{{- $faults | toJson -}}
{{- end -}}
