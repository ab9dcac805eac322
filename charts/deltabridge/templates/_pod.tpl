{{/* The bridge's variables, without secrets: the data of the ConfigMap. Empty values are those that mean none. */}}
{{- define "deltabridge.variables" -}}
{{- $v := .Values -}}
{{- $env := dict
  "BRIDGE_KUBE_QPS" (toString $v.kube.qps)
  "BRIDGE_KUBE_BURST" (toString (int64 $v.kube.burst))
  "BRIDGE_KUBE_CONTEXT" $v.kube.context
  "BRIDGE_CLUSTER" $v.cluster
  "BRIDGE_ACCEPT_CLUSTER_UID" $v.acceptClusterUID
  "BRIDGE_RESOURCES" (include "deltabridge.watched" .)
  "BRIDGE_NAMESPACES" (join "," $v.watch.namespaces)
  "BRIDGE_EXCLUDE_NAMESPACES" (join "," $v.watch.excludeNamespaces)
  "BRIDGE_PAYLOAD" $v.payload
  "BRIDGE_FORMAT" $v.format
  "BRIDGE_SECRETS" $v.secretValues.mode
  "BRIDGE_RESYNC_PERIOD" $v.resyncPeriod
  "BRIDGE_BUFFER_BYTES" (include "deltabridge.size" $v.bufferBytes)
  "BRIDGE_MAX_PENDING" (toString (int64 $v.maxPending))
  "BRIDGE_WATERMARK_INTERVAL" $v.watermarkInterval
  "BRIDGE_WATCH_PROGRESS_DEADLINE" $v.watchProgressDeadline
  "BRIDGE_OVERSIZE" $v.oversize
  "BRIDGE_CONTROL" (toString $v.control)
  "BRIDGE_SHUTDOWN_GRACE" (printf "%ds" (int64 $v.shutdownGraceSeconds))
  "BRIDGE_HTTP_ADDR" (printf ":%d" (int64 $v.httpPort))
  "BRIDGE_LOG_LEVEL" $v.log.level
  "BRIDGE_LOG_FORMAT" $v.log.format
  "NATS_URL" (join "," $v.nats.urls)
  "BRIDGE_NATS_DOMAIN" $v.nats.domain
  "BRIDGE_STREAM" $v.stream.name
  "BRIDGE_SUBJECT_PREFIX" $v.stream.subjectPrefix
  "BRIDGE_STREAM_MODE" (include "deltabridge.streamMode" .)
  "BRIDGE_STREAM_REPLICAS" (toString (int64 $v.stream.replicas))
  "BRIDGE_STREAM_STORAGE" $v.stream.storage
  "BRIDGE_STREAM_HISTORY" (toString (int64 $v.stream.history))
  "BRIDGE_STREAM_MAX_AGE" $v.stream.maxAge
  "BRIDGE_STREAM_MAX_BYTES" (include "deltabridge.size" $v.stream.maxBytes)
-}}
{{- if include "deltabridge.leaderElect" . -}}
{{- $_ := set $env "BRIDGE_LEADER_ELECT" "true" -}}
{{- $_ := set $env "BRIDGE_LEASE_NAMESPACE" (include "deltabridge.leaseNamespace" .) -}}
{{- $_ := set $env "BRIDGE_LEASE_NAME" (include "deltabridge.leaseName" .) -}}
{{- $_ := set $env "BRIDGE_LEASE_DURATION" (printf "%ds" (int64 $v.leaderElection.leaseDurationSeconds)) -}}
{{- end -}}
{{- $files := "/etc/deltabridge" -}}
{{- if $v.kube.kubeconfig.secret -}}{{- $_ := set $env "KUBECONFIG" (printf "%s/kubeconfig/%s" $files $v.kube.kubeconfig.key) -}}{{- end -}}
{{- if $v.nats.creds.secret -}}{{- $_ := set $env "NATS_CREDS" (printf "%s/nats-creds/%s" $files $v.nats.creds.key) -}}{{- end -}}
{{- if $v.nats.nkey.secret -}}{{- $_ := set $env "NATS_NKEY" (printf "%s/nats-nkey/%s" $files $v.nats.nkey.key) -}}{{- end -}}
{{- if $v.nats.context.secret -}}{{- $_ := set $env "NATS_CONTEXT" (printf "%s/nats-context/%s" $files $v.nats.context.key) -}}{{- end -}}
{{- if or $v.nats.tls.ca.secret $v.nats.tls.ca.configMap -}}{{- $_ := set $env "NATS_CA" (printf "%s/nats-ca/%s" $files $v.nats.tls.ca.key) -}}{{- end -}}
{{- if $v.nats.tls.client.secret -}}
{{- $_ := set $env "NATS_CERT" (printf "%s/nats-client/%s" $files $v.nats.tls.client.certKey) -}}
{{- $_ := set $env "NATS_KEY" (printf "%s/nats-client/%s" $files $v.nats.tls.client.keyKey) -}}
{{- end -}}
{{- range $name, $value := $env }}
{{- if $value }}
{{ $name }}: {{ $value | quote }}
{{- end }}
{{- end }}
BRIDGE_STRIP: {{ join "," $v.strip | quote }}
{{- end -}}

{{/* A size: a number, which YAML may have read as a float, or text. */}}
{{- define "deltabridge.size" -}}
{{- if kindIs "string" . -}}{{ . }}{{- else -}}{{ int64 . }}{{- end -}}
{{- end -}}

{{/* Variables and mounts of a container that runs the bridge. */}}
{{- define "deltabridge.containerEnv" -}}
{{- $v := .Values -}}
envFrom:
  - configMapRef:
      name: {{ include "deltabridge.fullname" . }}
  {{- with $v.extraEnvFrom }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
env:
  - name: POD_NAMESPACE
    valueFrom:
      fieldRef:
        fieldPath: metadata.namespace
  {{- with $v.secretValues.digestKey }}
  {{- if .secret }}
  - name: BRIDGE_SECRETS_KEY
    valueFrom:
      secretKeyRef: {name: {{ .secret | quote }}, key: {{ .key | quote }}}
  {{- end }}
  {{- end }}
  {{- with $v.nats.user }}
  {{- if .secret }}
  - name: NATS_USER
    valueFrom:
      secretKeyRef: {name: {{ .secret | quote }}, key: {{ .userKey | quote }}}
  - name: NATS_PASSWORD
    valueFrom:
      secretKeyRef: {name: {{ .secret | quote }}, key: {{ .passwordKey | quote }}}
  {{- end }}
  {{- end }}
  {{- with $v.nats.token }}
  {{- if .secret }}
  - name: NATS_TOKEN
    valueFrom:
      secretKeyRef: {name: {{ .secret | quote }}, key: {{ .key | quote }}}
  {{- end }}
  {{- end }}
  {{- with $v.extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{/* JSON: the existing Secrets and ConfigMaps that are mounted below /etc/deltabridge. */}}
{{- define "deltabridge.files" -}}
{{- $v := .Values -}}
{{- $files := list -}}
{{- if $v.kube.kubeconfig.secret -}}{{- $files = append $files (dict "name" "kubeconfig" "secret" $v.kube.kubeconfig.secret "keys" (list $v.kube.kubeconfig.key)) -}}{{- end -}}
{{- if $v.nats.creds.secret -}}{{- $files = append $files (dict "name" "nats-creds" "secret" $v.nats.creds.secret "keys" (list $v.nats.creds.key)) -}}{{- end -}}
{{- if $v.nats.nkey.secret -}}{{- $files = append $files (dict "name" "nats-nkey" "secret" $v.nats.nkey.secret "keys" (list $v.nats.nkey.key)) -}}{{- end -}}
{{- if $v.nats.context.secret -}}{{- $files = append $files (dict "name" "nats-context" "secret" $v.nats.context.secret "keys" (list $v.nats.context.key)) -}}{{- end -}}
{{- with $v.nats.tls.ca -}}
{{- if or .secret .configMap -}}{{- $files = append $files (dict "name" "nats-ca" "secret" .secret "configMap" .configMap "keys" (list .key)) -}}{{- end -}}
{{- end -}}
{{- with $v.nats.tls.client -}}
{{- if .secret -}}{{- $files = append $files (dict "name" "nats-client" "secret" .secret "keys" (list .certKey .keyKey)) -}}{{- end -}}
{{- end -}}
{{- toJson $files -}}
{{- end -}}

{{- define "deltabridge.volumeMounts" -}}
{{- range include "deltabridge.files" . | fromJsonArray }}
- name: {{ .name }}
  mountPath: /etc/deltabridge/{{ .name }}
  readOnly: true
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "deltabridge.volumes" -}}
{{- range include "deltabridge.files" . | fromJsonArray }}
- name: {{ .name }}
  {{- if .secret }}
  secret:
    secretName: {{ .secret | quote }}
    defaultMode: 0440
  {{- else }}
  configMap:
    name: {{ .configMap | quote }}
  {{- end }}
    items:
      {{- range .keys }}
      - {key: {{ . | quote }}, path: {{ . | quote }}}
      {{- end }}
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}
