{{- define "spark-mq.fullname" -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" }}
{{- end }}

{{- define "spark-mq.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "spark-mq.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "spark-mq.selector" -}}
app.kubernetes.io/name: spark-mq
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "spark-mq.labels" -}}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{ include "spark-mq.selector" . }}
{{- end }}

{{- /* Labels and annotations of a pod. A changed ConfigMap starts new pods. */ -}}
{{- define "spark-mq.podMetadata" -}}
annotations:
  checksum/environment: {{ .root.Values.environment | toJson | sha256sum }}
  {{- with .root.Values.podAnnotations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
labels:
  {{- include "spark-mq.selector" .root | nindent 2 }}
  app.kubernetes.io/component: {{ .component }}
  {{- with .root.Values.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{- /* What the pods of all components have in common. */ -}}
{{- define "spark-mq.pod" -}}
serviceAccountName: {{ include "spark-mq.serviceAccount" . }}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "spark-mq.container" -}}
image: "{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}"
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{- define "spark-mq.environment" -}}
- configMapRef: {name: {{ include "spark-mq.fullname" . }}}
{{- with .Values.existingSecret }}
- secretRef: {name: {{ . }}}
{{- end }}
{{- end }}
