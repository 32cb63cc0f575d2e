{{/* Merges two maps, the second one wins; also with false, 0 and empty values, which mergeOverwrite ignores. */}}
{{- define "dedupd.merge" -}}
{{- $merged := deepCopy (index . 0) -}}
{{- range $key, $value := index . 1 -}}
{{- $below := get $merged $key -}}
{{- if and (kindIs "map" $value) (kindIs "map" $below) -}}
{{- $_ := set $merged $key (include "dedupd.merge" (list $below $value) | fromJson) -}}
{{- else -}}
{{- $_ := set $merged $key $value -}}
{{- end -}}
{{- end -}}
{{- toJson $merged -}}
{{- end -}}

{{/* All topics as a list below "topics": each entry with the common values, its names and its configuration. */}}
{{- define "dedupd.topics" -}}
{{- $root := . -}}
{{- $topics := list -}}
{{- $names := dict -}}
{{- range .Values.topics -}}
{{- $common := pick $root.Values "replicas" "config" "secrets" "env" "extraVolumes" "extraVolumeMounts" "resources" "persistence" -}}
{{- $topic := include "dedupd.merge" (list $common .) | fromJson -}}
{{- $mode := default "run" .mode -}}
{{- $source := eq $mode "rekey" | ternary (printf "rekey-%s" .to) .raw -}}
{{- $name := default (regexReplaceAll "[^a-z0-9]+" (lower $source) "-" | trimAll "-") .name -}}
{{- $fullname := printf "%s-%s" $root.Release.Name $name -}}
{{- if gt (len $fullname) 52 -}}
{{- fail (printf "topics: the name %s of %s is longer than 52 characters; give the entry a shorter name" $fullname $source) -}}
{{- end -}}
{{- if hasKey $names $name -}}
{{- fail (printf "topics: %s and %s both have the name %s; give the entries different names" (get $names $name) $source $name) -}}
{{- end -}}
{{- $_ := set $names $name $source -}}
{{- include "dedupd.checkResources" (dict "fullname" $fullname "resources" $topic.resources) -}}
{{- $_ := set $topic "mode" $mode -}}
{{- $_ := set $topic "name" $name -}}
{{- $_ := set $topic "fullname" $fullname -}}
{{- $_ := set $topic "config" (include "dedupd.config" $topic | fromJson) -}}
{{- $topics = append $topics $topic -}}
{{- end -}}
{{- dict "topics" $topics | toJson -}}
{{- end -}}

{{/* Kubernetes rejects a request above the limit, as when an entry sets only one of them and the other one is the common value. */}}
{{- define "dedupd.checkResources" -}}
{{- $requests := default dict .resources.requests -}}
{{- $limits := default dict .resources.limits -}}
{{- range $name, $limit := $limits -}}
{{- $request := get $requests $name -}}
{{- $least := include "dedupd.quantity" $request -}}
{{- $most := include "dedupd.quantity" $limit -}}
{{- if and $least $most (gt (float64 $least) (float64 $most)) -}}
{{- fail (printf "resources: %s requests %s of %s, more than its limit of %s; set both" $.fullname (include "dedupd.text" $request) $name (include "dedupd.text" $limit)) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* A quantity as it was given. */}}
{{- define "dedupd.text" -}}
{{- if and (kindIs "float64" .) (eq (floor .) (float64 .)) }}{{ int64 . }}{{ else }}{{ . }}{{ end -}}
{{- end -}}

{{/* A quantity, as "1.5Gi" or "500m", as a number; empty for other text. */}}
{{- define "dedupd.quantity" -}}
{{- $decimal := dict "n" 1e-9 "u" 1e-6 "m" 1e-3 "" 1 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "E" 1e18 -}}
{{- $binary := dict "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 "Pi" 1125899906842624 "Ei" 1152921504606846976 -}}
{{- $text := toString . -}}
{{- $number := regexFind "^[0-9.]+([eE][+-]?[0-9]+)?" $text -}}
{{- $unit := get (merge $decimal $binary) (trimPrefix $number $text) -}}
{{- if and $number $unit -}}
{{- mulf (float64 $number) (float64 $unit) -}}
{{- end -}}
{{- end -}}

{{/* The configuration of a topic: the values' own, and what the chart sets. */}}
{{- define "dedupd.config" -}}
{{- $ours := dict "http" (dict "listen" "0.0.0.0:9464") -}}
{{- if eq .mode "rekey" -}}
{{- $_ := set $ours "rekey" (dict "from" .from "to" .to) -}}
{{- else -}}
{{- $_ := set $ours "topics" (dict "raw" .raw "clean" .clean) -}}
{{- $_ := set $ours "state" (dict "dir" "/var/lib/dedupd") -}}
{{- end -}}
{{- $config := include "dedupd.merge" (list .config $ours) | fromJson -}}
{{- $group := default dict $config.group -}}
{{- $scope := get (default dict $config.dedupe) "scope" -}}
{{- if and (eq .mode "run") (eq $scope "partition") (ne (toString $group.static_membership) "false") -}}
{{- /* A restarted pod resumes its partitions. The session covers its stop, a pull of the image and its start. */ -}}
{{- $group = include "dedupd.merge" (list (dict "on_stop" "remain" "session_timeout" "45s") $group) | fromJson -}}
{{- end -}}
{{- include "dedupd.merge" (list $config (dict "group" $group)) -}}
{{- end -}}

{{/* A configuration as TOML: JSON's texts, numbers and lists are also those of TOML. toToml would write 2 as 2.0. */}}
{{- define "dedupd.toml" -}}
{{- range $section, $content := . }}
{{- if $content }}
{{- range (kindIs "slice" $content | ternary $content (list $content)) }}
{{ kindIs "slice" $content | ternary (printf "[[%s]]" $section) (printf "[%s]" $section) }}
{{- $tables := dict }}
{{- range $key, $value := . }}
{{- if kindIs "map" $value }}
{{- $_ := set $tables $key $value }}
{{- else }}
{{ $key }} = {{ toRawJson $value }}
{{- end }}
{{- end }}
{{- range $table, $pairs := $tables }}
[{{ $section }}.{{ $table }}]
{{- range $key, $value := $pairs }}
{{ toRawJson $key }} = {{ toRawJson $value }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{/* The labels by which the pods of a topic are selected; they never change. */}}
{{- define "dedupd.selector" -}}
app.kubernetes.io/name: dedupd
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
app.kubernetes.io/component: {{ .topic.name | quote }}
{{- end -}}

{{- define "dedupd.releaseLabels" -}}
app.kubernetes.io/name: dedupd
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | quote }}
{{- with .Values.labels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "dedupd.labels" -}}
{{ include "dedupd.releaseLabels" .root }}
app.kubernetes.io/component: {{ .topic.name | quote }}
{{- end -}}
