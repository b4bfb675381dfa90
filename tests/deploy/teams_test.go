package deploy

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/yaml"
)

const teams = kubernetes + "overlays/teams/waterwheel.toml"

// What a platform for teams needs beside its servers, by both ways.
var platforms = []string{"overlays/teams", "helm/teams"}

// issuer writes the public key of one to jwks.json, and returns what signs tokens.
func issuer(t *testing.T, directory string) func(claims string) string {
	t.Helper()
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	encode := base64.RawURLEncoding.EncodeToString
	set := fmt.Sprintf(`{"keys":[{"kty":"OKP","crv":"Ed25519","alg":"EdDSA","kid":"1","x":"%s"}]}`, encode(public))
	if err := os.WriteFile(filepath.Join(directory, "jwks.json"), []byte(set), 0o440); err != nil {
		t.Fatal(err)
	}
	return func(claims string) string {
		signed := encode([]byte(`{"alg":"EdDSA","kid":"1"}`)) + "." + encode([]byte(claims))
		return signed + "." + encode(ed25519.Sign(private, []byte(signed)))
	}
}

// ask returns the answer to a call in JSON, with its status.
func ask(t *testing.T, url, token, body string) string {
	t.Helper()
	request, err := http.NewRequest("POST", url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	answer, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.Status + " " + string(text)
}

// The service accounts of each team have its tenant and its kinds; KEDA, which shows nothing, gets its metric and no more.
func TestTeamsAndKedaAreLetIn(t *testing.T) {
	for name, value := range map[string]string{
		"LISTEN": "127.0.0.1:0", "OPS_LISTEN": "127.0.0.1:0", "JSON": "true",
	} {
		t.Setenv("WATERWHEEL_SERVER__"+name, value)
	}
	t.Setenv("WATERWHEEL_DRAIN__NOTICE", "0s")
	t.Setenv("WATERWHEEL_STORE__MEMORY", "true")
	secret := mount(t)
	sign := issuer(t, secret)
	text, err := os.ReadFile(configuration(t, build(t, "overlays/teams"), secret))
	if err != nil {
		t.Fatal(err)
	}
	server := serve(t, "jobs", string(text))
	account := func(name string) string {
		return sign(fmt.Sprintf(`{"aud":["waterwheel"],"exp":%d,"iss":"https://kubernetes.default.svc.cluster.local",`+
			`"kubernetes.io":{"pod":{"name":"web-0"}},"sub":"system:serviceaccount:%s"}`, time.Now().Add(time.Hour).Unix(), name))
	}
	calls := "https://" + server.public + "/waterwheel.v1."
	operators := "http://" + server.ops + "/"
	const denied = "^40[13] "
	job := `{"job": {"kind": "sha256", "payload": "aGVsbG8="}}`
	for _, call := range []struct {
		url, token, body, says string
	}{
		{calls + "WorkerPoolService/Submit", account("team-1:web"), job, "output"},
		{calls + "JobService/CreateJob", account("team-1:web"), `{"jobId": "a", ` + job[1:], "jobId"},
		{calls + "JobService/GetJob", account("team-1:web"), `{"jobId": "a"}`, `"tenant":"team-1"`},
		{calls + "WorkerPoolService/Submit", account("team-2:web"), job, "output"},
		{calls + "JobService/GetJob", account("team-2:web"), `{"jobId": "a"}`, denied},
		{calls + "WorkerPoolService/Submit", account("team-3:web"), job, denied},
		{calls + "WorkerPoolService/Submit", "", job, denied},
		{operators + "externalscaler.ExternalScaler/GetMetricSpec", "", `{"scalerMetadata": {"pool": "images"}}`, "metricSpecs"},
		{operators + "waterwheel.v1.WorkerPoolService/Stats", "", `{}`, denied},
		{operators + "waterwheel.v1.WorkerPoolService/Stats", account("jobs:operator"), `{}`, "PHASE_SERVING"},
		{operators + "waterwheel.v1.AdminService/Pause", account("jobs:operator"), `{"pool": "cpu"}`, denied},
	} {
		if said := ask(t, call.url, call.token, call.body); !regexp.MustCompile(call.says).MatchString(said) {
			t.Errorf("%s: %s, and not %s", call.url, said, call.says)
		}
	}
}

// The chart makes of its example what the overlay makes.
func TestBothPlatformsAreTheSame(t *testing.T) {
	overlay, chart := build(t, platforms[0]), build(t, platforms[1])
	template := func(job *batchv1.CronJob) corev1.PodTemplateSpec {
		pod := *job.Spec.JobTemplate.Spec.Template.DeepCopy()
		pod.Spec.Volumes[0].PersistentVolumeClaim.ClaimName = ""
		return pod
	}
	if !reflect.DeepEqual(template(overlay.backup), template(chart.backup)) {
		t.Errorf("%+v, and %+v", overlay.backup, chart.backup)
	}
	if strings.TrimSpace(overlay.config.Data["waterwheel.toml"]) != strings.TrimSpace(chart.config.Data["waterwheel.toml"]) {
		t.Error("the configurations differ")
	}
	if !reflect.DeepEqual(overlay.network.Spec.Ingress, chart.network.Spec.Ingress) {
		t.Errorf("%+v, and %+v", overlay.network.Spec, chart.network.Spec)
	}
}

func TestKedaReachesTheOperatorsPort(t *testing.T) {
	for _, variant := range platforms {
		found := build(t, variant)
		pod := found.deployment.Spec.Template
		port := found.ops.Spec.Ports[0]
		if !labels.SelectorFromSet(found.ops.Spec.Selector).Matches(labels.Set(pod.Labels)) || port.Port != 7071 || port.TargetPort.StrVal != "ops" {
			t.Errorf("%s: %+v", variant, found.ops.Spec)
		}
		from := metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": "keda"}}
		if !slices.ContainsFunc(found.network.Spec.Ingress, func(rule networkingv1.NetworkPolicyIngressRule) bool {
			return rule.Ports[0].Port.IntVal == port.Port && reflect.DeepEqual(rule.From[0].NamespaceSelector, &from)
		}) {
			t.Errorf("%s: %+v", variant, found.network.Spec.Ingress)
		}
	}
}

// The workers of the example are let in by network and rule, and trust the certificate of the servers. KEDA asks for their pool.
func TestWorkersAttachToTheServers(t *testing.T) {
	text, err := os.ReadFile(kubernetes + "workers.yaml")
	if err != nil {
		t.Fatal(err)
	}
	documents := split(t, yaml.NewDocumentDecoder(io.NopCloser(bytes.NewReader(text))))
	var worker *appsv1.Deployment
	for _, document := range documents[:2] {
		object, err := decode(document)
		if err != nil {
			t.Fatalf("%v\n%s", err, document)
		}
		if deployment, is := object.(*appsv1.Deployment); is {
			worker = deployment
		}
	}
	servers, pod := build(t, platforms[0]), worker.Spec.Template
	config := servers.config.Data["waterwheel.toml"]
	account := fmt.Sprintf("\"jwt:system:serviceaccount:%s:%s\"", worker.Namespace, pod.Spec.ServiceAccountName)
	sources := pod.Spec.Volumes[0].Projected.Sources
	if !strings.Contains(config, account) || !strings.Contains(config, "audience = [\""+sources[0].ServiceAccountToken.Audience+"\"]") {
		t.Errorf("no rule lets %s in", account)
	}
	if sources[1].Secret.Name != servers.certificate.Spec.SecretName {
		t.Errorf("%+v beside %s", sources[1].Secret, servers.certificate.Spec.SecretName)
	}
	selector, err := metav1.LabelSelectorAsSelector(servers.network.Spec.Ingress[0].From[0].PodSelector)
	if err != nil || !selector.Matches(labels.Set(pod.Labels)) || labels.SelectorFromSet(servers.ops.Spec.Selector).Matches(labels.Set(pod.Labels)) {
		t.Errorf("%v: %+v", err, pod.Labels)
	}
	address := fmt.Sprintf("%s.%s.svc:%d", servers.service.Name, servers.service.Namespace, servers.service.Spec.Ports[0].Port)
	if pod.Spec.Containers[0].Env[0].Value != address {
		t.Errorf("%+v, and not %s", pod.Spec.Containers[0].Env[0], address)
	}
	asked := fmt.Sprintf("scalerAddress: %s.%s.svc:%d\n", servers.ops.Name, servers.ops.Namespace, servers.ops.Spec.Ports[0].Port)
	for _, line := range []string{asked, "scaleTargetRef:\n    name: " + worker.Name + "\n", "pool: images\n"} {
		if !strings.Contains(string(documents[2]), line) {
			t.Errorf("KEDA is not told %s", line)
		}
	}
}

// The keys are mounted as a directory, which is renewed; their ConfigMap is made apart.
func TestKeysOfTokensAreMounted(t *testing.T) {
	for _, variant := range platforms {
		found := build(t, variant)
		pod := found.deployment.Spec.Template.Spec
		at := slices.IndexFunc(pod.Volumes, func(v corev1.Volume) bool { return v.ConfigMap != nil && v.ConfigMap.Name == "waterwheel-jwks" })
		if at < 0 {
			t.Fatalf("%s: %+v", variant, pod.Volumes)
		}
		named := func(m corev1.VolumeMount) bool {
			return m.Name == pod.Volumes[at].Name && m.MountPath == keys && m.SubPath == ""
		}
		for _, container := range []corev1.Container{found.check(t), pod.Containers[0]} {
			if !slices.ContainsFunc(container.VolumeMounts, named) {
				t.Errorf("%s: %s mounts %+v", variant, container.Name, container.VolumeMounts)
			}
		}
	}
}

// What the CronJob writes is restored as docs/jobs.md says.
func TestADumpBringsJobsBack(t *testing.T) {
	url, secret, directory := startPostgres(t), mount(t), t.TempDir()
	config := strings.ReplaceAll(configured, "SECRET", secret) + "url = \"" + url + "\"\n"
	shell := func(script string) {
		command := exec.Command("sh", "-euc", script)
		command.Env = append(os.Environ(), "URL="+url)
		if said, err := command.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", script, err, said)
		}
	}
	container := build(t, "overlays/teams").backup.Spec.JobTemplate.Spec.Template.Spec.Containers[0]
	t.Run("before", func(t *testing.T) {
		body := `{"jobId": "kept", "job": {"kind": "sleep", "payload": "MTAw"}, "options": {"delay": "3600s"}}`
		serve(t, "jobs", config).create(t, body)
		shell(strings.ReplaceAll(container.Command[2], container.VolumeMounts[0].MountPath, directory))
	})
	shell(`psql --quiet "$URL" --command="drop schema waterwheel cascade" && ` +
		`pg_restore --clean --if-exists --dbname="$URL" ` + directory + "/jobs-*.dump")
	t.Run("after", func(t *testing.T) {
		server := serve(t, "jobs", config)
		until(t, func() string {
			if said := server.call("JobService/GetJob", `{"jobId": "kept"}`); !strings.Contains(said, "SCHEDULED") {
				return said
			}
			return ""
		})
	})
}

// An autoscaler sets the number of replicas, which an upgrade then leaves alone.
func TestReplicasCanBeLeftToAnAutoscaler(t *testing.T) {
	if found := decodeAll(t, "null", render(t, "--set", "replicas=null")).deployment.Spec.Replicas; found != nil {
		t.Errorf("%d replicas", *found)
	}
}
