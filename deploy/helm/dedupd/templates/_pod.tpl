{{- define "dedupd.pod" -}}
{{- $values := .root.Values -}}
# The open transaction is committed within nine seconds.
terminationGracePeriodSeconds: 20
# It sends no request to Kubernetes.
automountServiceAccountToken: false
{{- if or $values.serviceAccount.create $values.serviceAccount.name }}
serviceAccountName: {{ default .root.Release.Name $values.serviceAccount.name | quote }}
{{- end }}
{{- with $values.imagePullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . | quote }}
  {{- end }}
{{- end }}
{{- with $values.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  fsGroup: 10001
  seccompProfile: { type: RuntimeDefault }
{{- include "dedupd.affinity" . }}
{{- with $values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.topologySpreadConstraints }}
topologySpreadConstraints:
  {{- range . }}
  {{- $own := dict "matchLabels" (include "dedupd.selector" $ | fromYaml) }}
  - {{- hasKey . "labelSelector" | ternary . (set (deepCopy .) "labelSelector" $own) | toYaml | nindent 4 }}
  {{- end }}
{{- end }}
containers:
  - name: dedupd
    image: "{{ $values.image.repository }}:{{ default .root.Chart.AppVersion $values.image.tag }}"
    imagePullPolicy: {{ $values.image.pullPolicy | quote }}
    args: [{{ .topic.mode }}, --config, /etc/dedupd/dedupd.toml, --log-format, json]
    env:
      # The pod's name: the same after each restart.
      - name: DEDUPD_GROUP__INSTANCE
        valueFrom: { fieldRef: { fieldPath: metadata.name } }
      {{- with .topic.env }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
    ports:
      - { name: http, containerPort: 9464 }
    # Loading a large window takes time, and is work: alive from the start, ready when it is done.
    livenessProbe:
      httpGet: { path: /livez, port: http }
      {{- toYaml $values.livenessProbe | nindent 6 }}
    readinessProbe:
      httpGet: { path: /readyz, port: http }
      {{- toYaml $values.readinessProbe | nindent 6 }}
    resources:
      {{- toYaml .topic.resources | nindent 6 }}
    securityContext:
      allowPrivilegeEscalation: false
      readOnlyRootFilesystem: true
      capabilities: { drop: [ALL] }
    volumeMounts:
      - { name: config, mountPath: /etc/dedupd, readOnly: true }
      {{- if eq .topic.mode "run" }}
      - { name: state, mountPath: /var/lib/dedupd }
      {{- end }}
      - { name: tmp, mountPath: /tmp }
      {{- range $place, $secret := .topic.secrets }}
      - { name: secret-{{ $place }}, mountPath: /run/secrets/{{ $secret }}, readOnly: true }
      {{- end }}
      {{- with .topic.extraVolumeMounts }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
volumes:
  - name: config
    configMap: { name: {{ .topic.fullname | quote }} }
  {{- range $place, $secret := .topic.secrets }}
  - name: secret-{{ $place }}
    secret: { secretName: {{ $secret | quote }}, defaultMode: 288 } # 0440, for the group of the pod
  {{- end }}
  # Temporary files of `audit`, `state inspect` and `state export`: the last two copy the local state.
  - name: tmp
    emptyDir: { sizeLimit: {{ .topic.persistence.size | quote }} }
  {{- with .topic.extraVolumes }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  {{- if and (eq .topic.mode "run") (not .topic.persistence.enabled) }}
  - name: state
    emptyDir: { sizeLimit: {{ .topic.persistence.size | quote }} }
  {{- end }}
{{- end -}}

{{- define "dedupd.affinity" -}}
{{- $selector := include "dedupd.selector" . -}}
{{- with .root.Values.podAntiAffinity }}
{{- if eq . "required" }}
affinity:
  podAntiAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      - topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels:
            {{- $selector | nindent 12 }}
{{- else if eq . "preferred" }}
affinity:
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          topologyKey: kubernetes.io/hostname
          labelSelector:
            matchLabels:
              {{- $selector | nindent 14 }}
{{- end }}
{{- end }}
{{- end -}}
