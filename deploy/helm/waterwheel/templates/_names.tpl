{{- define "waterwheel.fullname" -}}
{{- $named := .Release.Name }}
{{- if not (contains .Chart.Name $named) }}{{ $named = printf "%s-%s" $named .Chart.Name }}{{ end }}
{{- .Values.fullnameOverride | default $named | trunc 50 | trimSuffix "-" }}
{{- end }}

{{- define "waterwheel.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "waterwheel.metadata" -}}
namespace: {{ .Release.Namespace }}
labels:
  {{- include "waterwheel.selector" . | nindent 2 }}
  app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
  app.kubernetes.io/managed-by: {{ .Release.Service }}
  helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "waterwheel.account" -}}
{{- $own := "default" }}
{{- if .Values.serviceAccount.create }}{{ $own = include "waterwheel.fullname" . }}{{ end }}
{{- .Values.serviceAccount.name | default $own }}
{{- end }}

{{- define "waterwheel.tls" -}}
{{- .Values.tls.secret | default (printf "%s-tls" (include "waterwheel.fullname" .)) }}
{{- end }}

{{- define "waterwheel.claim" -}}
{{- .Values.store.volume.existingClaim | default (printf "%s-store" (include "waterwheel.fullname" .)) }}
{{- end }}

{{- define "waterwheel.config" -}}
{{- $file := ternary "files/tls.toml" "files/plaintext.toml" .Values.tls.enabled }}
{{- .Values.config | default (.Files.Get $file) }}
{{- end }}

{{- define "waterwheel.image" -}}
{{- with .Values.image }}
{{- if .digest }}{{ .repository }}@{{ .digest }}{{ else }}{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end }}
{{- end }}

{{/* What the check of the configuration and the server have in common. */}}
{{- define "waterwheel.container" -}}
image: {{ include "waterwheel.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
resources:
  {{- toYaml .Values.resources | nindent 2 }}
securityContext:
  {{- toYaml .Values.securityContext | nindent 2 }}
volumeMounts:
  - name: config
    mountPath: /etc/waterwheel
    readOnly: true
  {{- if .Values.tls.enabled }}
  # A directory, and no file of it: what is mounted by `subPath` is never renewed.
  - name: tls
    mountPath: /etc/waterwheel-tls
    readOnly: true
  {{- end }}
  {{- if .Values.tokens.configMap }}
  - name: jwks
    mountPath: /etc/waterwheel-jwks
    readOnly: true
  {{- end }}
  - name: tmp
    mountPath: /tmp
  - name: run
    mountPath: /run/waterwheel
  {{- if .Values.store.volume.enabled }}
  - name: store
    mountPath: /var/lib/waterwheel
  {{- end }}
  {{- if and .Values.store.url.secret .Values.store.url.ca }}
  - name: store-ca
    mountPath: /etc/waterwheel-store
    readOnly: true
  {{- end }}
  {{- with .Values.extraVolumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{- define "waterwheel.env" -}}
{{- if .Values.store.volume.enabled }}
- name: WATERWHEEL_STORE__PATH
  value: /var/lib/waterwheel/waterwheel.db
{{- end }}
{{- with .Values.store.url }}
{{- if .secret }}
- name: WATERWHEEL_STORE__URL
  valueFrom:
    secretKeyRef:
      name: {{ .secret }}
      key: {{ .key }}
{{- if .ca }}
- name: WATERWHEEL_STORE__CA_FILE
  value: /etc/waterwheel-store/ca.crt
{{- end }}
{{- end }}
{{- end }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end }}
