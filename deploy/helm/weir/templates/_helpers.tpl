{{- define "weir.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/* Release and chart name, or one of them where they are alike. */}}
{{- define "weir.fullname" -}}
{{- $name := include "weir.name" . -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* The full name with a suffix, as an object's name of at most 63 characters. Takes [context, suffix]. */}}
{{- define "weir.nameOf" -}}
{{- $suffix := index . 1 -}}
{{- printf "%s-%s" (include "weir.fullname" (index . 0) | trunc (int (sub 62 (len $suffix))) | trimSuffix "-") $suffix -}}
{{- end -}}

{{- define "weir.selectorLabels" -}}
app.kubernetes.io/name: {{ include "weir.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "weir.labels" -}}
{{ include "weir.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "weir.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "weir.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "weir.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}
{{- end -}}

{{/* The address IP:PORT of a server in the configuration: the default where the
field is absent, empty where it is switched off. Takes [config, field, default]. */}}
{{- define "weir.address" -}}
{{- $config := index . 0 -}}
{{- $field := index . 1 -}}
{{- if hasKey $config $field -}}{{- get $config $field -}}{{- else -}}{{- index . 2 -}}{{- end -}}
{{- end -}}

{{- define "weir.healthz" -}}{{- include "weir.address" (list .Values.config "healthzBindAddress" "0.0.0.0:9465") -}}{{- end -}}
{{- define "weir.metrics" -}}{{- include "weir.address" (list .Values.config "metricsBindAddress" "127.0.0.1:9464") -}}{{- end -}}

{{/* The port and the host of IP:PORT. */}}
{{- define "weir.port" -}}{{- regexFind "[0-9]+$" . -}}{{- end -}}
{{- define "weir.host" -}}{{- regexReplaceAll ":[0-9]+$" . "" | trimPrefix "[" | trimSuffix "]" -}}{{- end -}}

{{/* How the kubelet asks a path of healthzBindAddress. */}}
{{- define "weir.probe" -}}
{{- $address := index . 0 -}}
{{- $host := include "weir.host" $address -}}
httpGet:
  path: {{ index . 1 }}
  port: {{ include "weir.port" $address }}
  {{- if not (has $host (list "" "0.0.0.0" "::")) }}
  host: {{ $host | quote }}
  {{- end }}
{{- end -}}

{{/* The nodes are named, or all of them are asked for. */}}
{{- define "weir.checkNodes" -}}
{{- $named := omit (default (dict) .Values.nodeSelector) "kubernetes.io/os" -}}
{{- if not (or .Values.allNodes $named (dig "nodeAffinity" nil (default (dict) .Values.affinity))) -}}
{{- fail "say which nodes take traffic: set nodeSelector (such as node-role.kubernetes.io/edge) or affinity.nodeAffinity; allNodes: true puts Weir on every Linux node, the control plane too" -}}
{{- end -}}
{{- end -}}

{{/* What the kubelet waits for after SIGTERM: longer than the drain, and the 2 s in which
onStop: auto asks the API server. A restart does not drain. */}}
{{- define "weir.gracePeriod" -}}
{{- $drain := default (dict) (get .Values.config "drain") -}}
{{- $announce := default (dict) (get .Values.config "announce") -}}
{{- $linger := 0 -}}
{{- if or (ne (dig "speaker" "off" $announce) "off") (dig "l2" "interfaces" list $announce) -}}{{- $linger = int (dig "drainSeconds" 5 $announce) -}}{{- end -}}
{{- $long := add (max (int (dig "notReadySeconds" 10 $drain)) $linger) (int (dig "timeoutSeconds" 15 $drain)) -}}
{{- $given := .Values.terminationGracePeriodSeconds -}}
{{- if not $given -}}
{{- add $long 15 -}}
{{- else if le (int64 $given) $long -}}
{{- fail (printf "terminationGracePeriodSeconds %d: must be more than the %d s that config.drain takes" (int64 $given) $long) -}}
{{- else -}}
{{- int64 $given -}}
{{- end -}}
{{- end -}}

{{/* The number of workers, as far as the configuration tells: count, else one for each of
cpus, else 1. cpus is a text such as 2-5,8, or a list of such texts and numbers. */}}
{{- define "weir.workers" -}}
{{- $workers := default (dict) (get .Values.config "workers") -}}
{{- $count := get $workers "count" | toString -}}
{{- $cpus := get $workers "cpus" -}}
{{- $cpus = ternary (join "," $cpus) (toString $cpus) (kindIs "slice" $cpus) | nospace -}}
{{- if regexMatch "^[1-9][0-9]*$" $count -}}
{{- $count -}}
{{- else if regexMatch "^[0-9]" $cpus -}}
{{- $n := 0 -}}
{{- range splitList "," $cpus -}}
{{- $ends := splitList "-" . -}}
{{- $n = add $n 1 (sub (int (last $ends)) (int (first $ends))) -}}
{{- end -}}
{{- $n -}}
{{- else -}}
1
{{- end -}}
{{- end -}}

{{/* The memory that Weir takes, in MiB. Packet buffers: for each worker 4,096 frames per
interface, for the host veth and to spare (lb.openMemory). The flow table: 190 bytes for a
connection; auto is 5 % of the node's memory, here of 8 GiB. 256 MiB for the rest. */}}
{{- define "weir.memory" -}}
{{- $frame := get (default (dict) (get .Values.config "packetMemory")) "frameSize" | toString -}}
{{- $perPort := ternary 8 16 (eq $frame "2048") -}}
{{- $buffers := mul (include "weir.workers" . | int) (add (len .Values.config.interfaces) 2) $perPort -}}
{{- $flows := default "auto" (get (default (dict) (get .Values.config "conntrack")) "maxFlows") -}}
{{- $table := 410 -}}
{{- if ne ($flows | toString) "auto" -}}
{{- $table = div (add (mul (int64 $flows) 190) 1048575) 1048576 -}}
{{- end -}}
{{- add $buffers $table 256 -}}
{{- end -}}

{{/* The resources that are given. A request that is given neither there nor as a limit,
which would stand for it, is computed. */}}
{{- define "weir.resources" -}}
{{- $resources := deepCopy (default (dict) .Values.resources) -}}
{{- $requests := default (dict) (get $resources "requests") -}}
{{- $limits := default (dict) (get $resources "limits") -}}
{{- if not (or (hasKey $requests "cpu") (hasKey $limits "cpu")) -}}
{{- $_ := set $requests "cpu" (printf "%s500m" (include "weir.workers" .)) -}}
{{- end -}}
{{- if not (or (hasKey $requests "memory") (hasKey $limits "memory")) -}}
{{- $_ := set $requests "memory" (printf "%sMi" (include "weir.memory" .)) -}}
{{- end -}}
{{- if $requests -}}{{- $_ := set $resources "requests" $requests -}}{{- end -}}
{{- toYaml $resources -}}
{{- end -}}

{{/* The name of the ConfigMap has a hash of the contents. */}}
{{- define "weir.configMap" -}}
{{- include "weir.nameOf" (list . (toYaml .Values.config | sha256sum | trunc 10)) -}}
{{- end -}}
