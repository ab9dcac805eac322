{{/*
Which rights a list of resources needs. The argument is the list; the result is JSON:
  rules        resources by group, with "" for the core group and "*" for all groups
  definitions  names of the definitions of its custom resources
  anyCustom    whether definitions cannot be named, for a whole group or everything is watched
Names are those of BRIDGE_RESOURCES: resource, resource.group, resource.version.group, *.group, *, and -excluded. A role
knows nothing of versions and short names, and cannot exclude from a wildcard.
*/}}
{{- define "deltabridge.rights" -}}
{{- $bare := dict -}}
{{- range tuple "pods" "services" "configmaps" "secrets" "namespaces" "nodes" "events" "endpoints" "persistentvolumes" "persistentvolumeclaims" "serviceaccounts" "replicationcontrollers" "resourcequotas" "limitranges" "podtemplates" -}}
{{- $_ := set $bare . "" -}}
{{- end -}}
{{- range tuple "deployments" "statefulsets" "daemonsets" "replicasets" "controllerrevisions" -}}{{- $_ := set $bare . "apps" -}}{{- end -}}
{{- range tuple "jobs" "cronjobs" -}}{{- $_ := set $bare . "batch" -}}{{- end -}}
{{- range tuple "ingresses" "ingressclasses" "networkpolicies" -}}{{- $_ := set $bare . "networking.k8s.io" -}}{{- end -}}
{{- range tuple "roles" "rolebindings" "clusterroles" "clusterrolebindings" -}}{{- $_ := set $bare . "rbac.authorization.k8s.io" -}}{{- end -}}
{{- range tuple "storageclasses" "csidrivers" "csinodes" "volumeattachments" -}}{{- $_ := set $bare . "storage.k8s.io" -}}{{- end -}}
{{- $_ := set $bare "customresourcedefinitions" "apiextensions.k8s.io" -}}
{{- $_ := set $bare "horizontalpodautoscalers" "autoscaling" -}}
{{- $_ := set $bare "poddisruptionbudgets" "policy" -}}
{{- $_ := set $bare "endpointslices" "discovery.k8s.io" -}}
{{- $_ := set $bare "leases" "coordination.k8s.io" -}}
{{- $_ := set $bare "priorityclasses" "scheduling.k8s.io" -}}
{{- $found := list -}}
{{- $excluded := list -}}
{{- range $item := . -}}
  {{- $text := trimPrefix "-" $item -}}
  {{- $parts := splitList "." $text -}}
  {{- $resource := first $parts -}}
  {{- $rest := rest $parts -}}
  {{- $version := false -}}
  {{- if and (gt (len $rest) 1) (regexMatch "^v[0-9]+((alpha|beta)[0-9]+)?$" (first $rest)) -}}
    {{- $rest = rest $rest -}}
    {{- $version = true -}}
  {{- end -}}
  {{- $group := join "." $rest -}}
  {{- if eq $text "*" -}}
    {{- $group = "*" -}}
  {{- else if eq (len $parts) 1 -}}
    {{- if hasKey $bare $resource -}}
      {{- $group = get $bare $resource -}}
    {{- else if not (hasPrefix "-" $item) -}}
      {{- fail (printf "watch.resources: the group of %q is not known here; write its plural name with the group, as `kubectl api-resources` shows them" $text) -}}
    {{- end -}}
  {{- end -}}
  {{- $key := printf "%s|%s" $group $resource -}}
  {{- if hasPrefix "-" $item -}}
    {{- if not $version -}}{{- $excluded = append $excluded $key -}}{{- end -}}
  {{- else -}}
    {{- $found = append $found $key -}}
  {{- end -}}
{{- end -}}
{{- $rules := dict -}}
{{- $definitions := list -}}
{{- $anyCustom := false -}}
{{- $all := has "*|*" $found -}}
{{- $builtIn := "^([^.]*|(admissionregistration|apiextensions|apiregistration|authentication|authorization|certificates|coordination|discovery|events|flowcontrol\\.apiserver|internal\\.apiserver|networking|node|rbac\\.authorization|resource|scheduling|storage|storagemigration)\\.k8s\\.io)$" -}}
{{- range $key := uniq $found -}}
  {{- $group := index (splitList "|" $key) 0 -}}
  {{- $resource := index (splitList "|" $key) 1 -}}
  {{- if or (has $key $excluded) (has (printf "%s|*" $group) $excluded) -}}
  {{- else if and $all (ne $key "*|*") -}}
  {{- else if and (ne $resource "*") (has (printf "%s|*" $group) $found) -}}
  {{- else -}}
    {{- $_ := set $rules $group (append (default list (get $rules $group)) $resource) -}}
    {{- if eq $group "*" -}}
      {{- $anyCustom = true -}}
    {{- else if not (regexMatch $builtIn $group) -}}
      {{- if eq $resource "*" -}}
        {{- $anyCustom = true -}}
      {{- else -}}
        {{- $definitions = append $definitions (printf "%s.%s" $resource $group) -}}
      {{- end -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- dict "rules" $rules "definitions" $definitions "anyCustom" $anyCustom | toJson -}}
{{- end -}}

{{/* The rules of a role, from the "rules" of the above. */}}
{{- define "deltabridge.rules" -}}
{{- range $group, $resources := . }}
- apiGroups: [{{ $group | quote }}]
  resources:
    {{- range sortAlpha $resources }}
    - {{ . | quote }}
    {{- end }}
  verbs: [list, watch]
{{- end }}
{{- end -}}

{{/* Resources of Kubernetes' own that are not namespaced, as group|resource. */}}
{{- define "deltabridge.unnamespaced" -}}
|namespaces |nodes |persistentvolumes rbac.authorization.k8s.io|clusterroles rbac.authorization.k8s.io|clusterrolebindings networking.k8s.io|ingressclasses storage.k8s.io|storageclasses storage.k8s.io|csidrivers storage.k8s.io|csinodes storage.k8s.io|volumeattachments apiextensions.k8s.io|customresourcedefinitions scheduling.k8s.io|priorityclasses apiregistration.k8s.io|apiservices
{{- end -}}
