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
