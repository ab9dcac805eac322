{{- define "deltabridge.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "deltabridge.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Names of what is outside the release's namespace also hold that namespace, so that two releases do not meet. */}}
{{- define "deltabridge.clusterName" -}}
{{- printf "%s-%s" .Release.Namespace (include "deltabridge.fullname" .) -}}
{{- end -}}

{{- define "deltabridge.selectorLabels" -}}
app.kubernetes.io/name: {{ include "deltabridge.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "deltabridge.labels" -}}
{{ include "deltabridge.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "deltabridge.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "deltabridge.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "deltabridge.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end -}}
{{- end -}}

{{/* "true" or nothing. The schema refuses several replicas with leader election off. */}}
{{- define "deltabridge.leaderElect" -}}
{{- if kindIs "invalid" .Values.leaderElection.enabled -}}
{{- if gt (int .Values.replicas) 1 -}}true{{- end -}}
{{- else if .Values.leaderElection.enabled -}}true{{- end -}}
{{- end -}}

{{/* What the bridge makes of BRIDGE_CLUSTER where no name is given (Config.Lease). */}}
{{- define "deltabridge.leaseName" -}}
{{- default (regexReplaceAll "-+$" (printf "deltabridge-%s" (lower .Values.cluster)) "") .Values.leaderElection.leaseName -}}
{{- end -}}

{{- define "deltabridge.leaseNamespace" -}}
{{- default .Release.Namespace .Values.leaderElection.leaseNamespace -}}
{{- end -}}

{{- define "deltabridge.streamMode" -}}
{{- if .Values.stream.mode -}}{{ .Values.stream.mode }}{{- else if .Values.stream.nack.enabled -}}require{{- else -}}create{{- end -}}
{{- end -}}

{{/* The default list of the bridge, less what is not namespaced in namespaced mode; as a comma list. */}}
{{- define "deltabridge.watched" -}}
{{- $default := list "pods" "services" "configmaps" "namespaces" "nodes" "deployments.apps" "statefulsets.apps" "daemonsets.apps" "replicasets.apps" "jobs.batch" "cronjobs.batch" "ingresses.networking.k8s.io" -}}
{{- if .Values.watch.resources -}}
{{- join "," .Values.watch.resources -}}
{{- else if .Values.watch.namespaces -}}
{{- without $default "namespaces" "nodes" | join "," -}}
{{- else -}}
{{- join "," $default -}}
{{- end -}}
{{- end -}}

{{/* Whether the rights are granted here: not those for another cluster. */}}
{{- define "deltabridge.grants" -}}
{{- if and .Values.rbac.create (not .Values.kube.kubeconfig.secret) -}}true{{- end -}}
{{- end -}}
