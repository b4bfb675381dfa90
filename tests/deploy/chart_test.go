package deploy

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"sigs.k8s.io/yaml"
)

const chart = "../../deploy/helm/waterwheel"

// helm runs the one of HELM_BIN, and gives what it printed, and what it said.
func helm(t *testing.T, args ...string) ([]byte, string, error) {
	t.Helper()
	program := os.Getenv("HELM_BIN")
	if program == "" {
		t.Fatal("set HELM_BIN to helm 3")
	}
	var said bytes.Buffer
	command := exec.Command(program, args...)
	command.Stderr = &said
	output, err := command.Output()
	return output, said.String(), err
}

func render(t *testing.T, args ...string) []byte {
	t.Helper()
	output, said, err := template(t, args...)
	if err != nil {
		t.Fatalf("helm template %v: %v: %s", args, err, said)
	}
	return output
}

// The oldest Kubernetes that the chart allows.
func template(t *testing.T, args ...string) ([]byte, string, error) {
	t.Helper()
	return helm(t, append([]string{"template", "shop", chart, "--namespace", "jobs", "--kube-version", "1.27.0"}, args...)...)
}

func TestTheChartHasNoFault(t *testing.T) {
	files, err := filepath.Glob(chart + "/ci/*-values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if name := strings.TrimSuffix(filepath.Base(file), "-values.yaml"); !slices.Contains(variants, "helm/"+name) {
			t.Errorf("nothing checks %s", file)
		}
		if said, faults, err := helm(t, "lint", chart, "--strict", "--kube-version", "1.27.0", "--values", file); err != nil {
			t.Errorf("%s: %s%s", file, said, faults)
		}
	}
}

// What a typing error makes of a value is refused, and named.
func TestFaultyValuesAreRefused(t *testing.T) {
	for value, named := range map[string]string{
		"replica=3":                                    "replica",
		"tls.secretName=a":                             "secretName",
		"terminationGracePeriodSeconds=45s":            "/terminationGracePeriodSeconds",
		"image.digest=latest":                          "/image/digest",
		"podMonitor.labels.a=true":                     "/podMonitor/labels/a",
		"store.volume.enabled=true,store.url.secret=a": "/store",
		"backup.enabled=true":                          "/store/url/secret",
	} {
		if _, said, err := template(t, "--set", value); err == nil || !strings.Contains(said, named) {
			t.Errorf("%s: %v: %s", value, err, said)
		}
	}
}

func TestPartsCanBeLeftOut(t *testing.T) {
	kinds := func(args ...string) []string {
		var found []string
		for _, kind := range regexp.MustCompile(`(?m)^kind: (\w+)$`).FindAllSubmatch(render(t, args...), -1) {
			found = append(found, string(kind[1]))
		}
		slices.Sort(found)
		return found
	}
	least := []string{"ConfigMap", "Deployment", "Service"}
	off := "podDisruptionBudget.enabled=false,networkPolicy.enabled=false,serviceAccount.create=false,serviceAccount.name=a"
	if found := kinds("--set", off); !slices.Equal(found, least) {
		t.Errorf("%v", found)
	}
	for value, kind := range map[string]string{
		"store.volume.enabled=true":    "PersistentVolumeClaim",
		"tls.certManager.enabled=true": "Certificate",
		"podMonitor.enabled=true":      "PodMonitor",
		"prometheusRule.enabled=true":  "PrometheusRule",
		"dashboard.enabled=true":       "ConfigMap",
		"keda.enabled=true":            "Service",
	} {
		expected := append([]string{kind}, least...)
		slices.Sort(expected)
		if found := kinds("--set", off+","+value); !slices.Equal(found, expected) {
			t.Errorf("%s: %v", value, found)
		}
	}
	if found := build(t, "helm/claim"); found.claim != nil {
		t.Errorf("a claim that exists is made: %+v", found.claim)
	}
}

// What is in a values file arrives where it belongs.
func TestOwnValuesArrive(t *testing.T) {
	found := build(t, "helm/own")
	pod := found.deployment.Spec.Template.Spec
	server := pod.Containers[0]
	var values struct{ Config string }
	text, err := os.ReadFile(chart + "/ci/own-values.yaml")
	if err != nil || yaml.Unmarshal(text, &values) != nil {
		t.Fatal(err)
	}
	has := func(what string, is bool) {
		t.Helper()
		if !is {
			t.Errorf("%s is not that of own-values.yaml", what)
		}
	}
	has("configuration", strings.TrimSpace(found.config.Data["waterwheel.toml"]) == strings.TrimSpace(values.Config))
	has("names", found.deployment.Name == "sorters" && found.service.Name == "sorters" && found.deployment.Namespace == "jobs")
	has("account", pod.ServiceAccountName == "sorters-pods" && found.account.Name == "sorters-pods")
	has("image", strings.HasPrefix(server.Image, "registry.example/sorters@sha256:") && server.Image == found.check(t).Image)
	has("secret of the registry", pod.ImagePullSecrets[0].Name == "registry")
	has("replicas", *found.deployment.Spec.Replicas == 5 && found.budget.Spec.MaxUnavailable.StrVal == "20%")
	has("grace", *pod.TerminationGracePeriodSeconds == 90)
	has("resources", server.Resources.Limits.Cpu().IsZero() && server.Resources.Requests.Cpu().Value() == 4)
	has("processes", *pod.ShareProcessNamespace)
	has("place", pod.NodeSelector["disk"] == "fast" && pod.Tolerations[0].Key == "pool" && pod.PriorityClassName == "high")
	has("affinity", pod.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil)
	has("spread", pod.TopologySpreadConstraints[0].TopologyKey == "topology.kubernetes.io/zone")
	has("programs", pod.InitContainers[0].Name == "programs")
	for _, container := range pod.InitContainers[1:] {
		has("variable of "+container.Name, container.Env[len(container.Env)-1].Name == "WATERWHEEL_TELEMETRY__LOG")
		has("mount of "+container.Name, container.VolumeMounts[len(container.VolumeMounts)-1].MountPath == "/opt/programs")
	}
	rolled := func(value string) string {
		pods := decodeAll(t, value, render(t, "--set", value)).deployment.Spec.Template
		return pods.Annotations["checksum/config"]
	}
	if rolled("config=a=1") == rolled("config=a=2") || rolled("replicas=1") != rolled("replicas=2") {
		t.Error("pods are not replaced by a changed configuration, or by something else")
	}
}

func TestTheChartHasTheAlerts(t *testing.T) {
	found := build(t, "helm/cert-manager")
	text, err := os.ReadFile(rules)
	if err != nil {
		t.Fatal(err)
	}
	var source monitoringv1.PrometheusRuleSpec
	if err := yaml.UnmarshalStrict(text, &source); err != nil || len(source.Groups) == 0 {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(source, found.rules.Spec) {
		t.Errorf("%+v", found.rules)
	}
	for _, labels := range []map[string]string{found.monitor.Labels, found.rules.Labels} {
		if labels["release"] != "prometheus" {
			t.Errorf("the operator does not select %v", labels)
		}
	}
}

func TestTheChartIsOfThisVersion(t *testing.T) {
	version := func(file, pattern string) string {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return string(regexp.MustCompile(pattern).FindSubmatch(text)[1])
	}
	own := version("../../Cargo.toml", `(?m)^version = "(.*)"`)
	for _, name := range []string{"version", "appVersion"} {
		if found := version(chart+"/Chart.yaml", `(?m)^`+name+`: (.*)`); found != own {
			t.Errorf("%s is %s, and the program's version %s", name, found, own)
		}
	}
}
