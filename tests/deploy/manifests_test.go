// Package deploy checks the manifests as they are built: that they decode as the API server's own types, without an
// unknown or doubled field, and that the figures and names in them agree with one another.
package deploy

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	certmanagerv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

const kubernetes = "../../deploy/kubernetes/"

var (
	secured = []string{
		"base", "overlays/cert-manager", "overlays/sqlite", "overlays/postgres", "overlays/cert-manager-postgres",
		"cert-manager+sqlite", "sqlite+cert-manager", "postgres+cert-manager", "postgres+monitoring", "overlays/teams",
		"keda+tokens+sqlite",
		"helm/default", "helm/cert-manager", "helm/volume", "helm/claim", "helm/postgres", "helm/cert-manager-postgres",
		"helm/own", "helm/teams",
	}
	meshed = []string{
		"overlays/linkerd", "overlays/istio", "linkerd+postgres", "istio+postgres", "linkerd+sqlite+monitoring", "istio+sqlite",
		"postgres+linkerd", "sqlite+istio", "helm/linkerd", "helm/istio-postgres",
	}
	variants = append(secured, meshed...)
)

// folder is that of a variant. One that names several components is made as a user would combine them.
func folder(t *testing.T, variant string) string {
	t.Helper()
	if !strings.Contains(variant, "+") {
		return kubernetes + variant
	}
	return overlay(t, strings.Split(variant, "+"), "")
}

// overlay writes a kustomization as a user would: the base, components, and patches.
func overlay(t *testing.T, components []string, rest string) string {
	t.Helper()
	place, err := os.MkdirTemp(kubernetes+"overlays", "test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(place) })
	text := "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: [../../base]\ncomponents:\n"
	for _, component := range components {
		text += "  - ../../components/" + component + "\n"
	}
	text += "transformers: [../../grace]\n" + rest
	if err := os.WriteFile(filepath.Join(place, "kustomization.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return place
}

// A user's overlay may change the grace period, and names; the program must learn of it.
func TestAChangedGracePeriodReachesTheProgram(t *testing.T) {
	patch := "namePrefix: team-\nnamespace: jobs\npatches:\n  - target: {kind: Deployment, name: waterwheel}\n    patch: |\n" +
		"      - {op: replace, path: /spec/template/spec/terminationGracePeriodSeconds, value: 90}\n"
	for _, components := range [][]string{{"sqlite"}, {"cert-manager", "postgres"}, {"istio", "postgres"}} {
		found := buildFolder(t, overlay(t, components, patch))
		if grace := found.check(t).Env[0]; grace.Name != "WATERWHEEL_GRACE" || grace.Value != "90" {
			t.Errorf("%v: %+v", components, grace)
		}
	}
}

// built is what one variant is made of.
type built struct {
	deployment *appsv1.Deployment
	service    *corev1.Service
	budget     *policyv1.PodDisruptionBudget
	network    *networkingv1.NetworkPolicy
	config     *corev1.ConfigMap
	account    *corev1.ServiceAccount
	// In some variants only.
	certificate *certmanagerv1.Certificate
	claim       *corev1.PersistentVolumeClaim
	dashboard   *corev1.ConfigMap
	monitor     *monitoringv1.PodMonitor
	rules       *monitoringv1.PrometheusRule
	ops         *corev1.Service
	backup      *batchv1.CronJob
	dumps       *corev1.PersistentVolumeClaim
}

// check is the container that compares the configuration with the pod.
func (b built) check(t *testing.T) corev1.Container {
	t.Helper()
	containers := b.deployment.Spec.Template.Spec.InitContainers
	last := containers[len(containers)-1]
	if last.Name != "check" {
		t.Fatalf("%s, and not the check, goes before the server", last.Name)
	}
	return last
}

var known = runtime.NewScheme()

func init() {
	scheme.AddToScheme(known)
	certmanagerv1.AddToScheme(known)
	monitoringv1.AddToScheme(known)
}

func decode(document []byte) (runtime.Object, error) {
	strict := serializer.NewCodecFactory(known, serializer.EnableStrict).UniversalDeserializer()
	object, _, err := strict.Decode(document, nil, nil)
	return object, err
}

func build(t *testing.T, variant string) built {
	t.Helper()
	if name, found := strings.CutPrefix(variant, "helm/"); found {
		values := []string{"--values", chart + "/ci/" + name + "-values.yaml"}
		if name == "teams" {
			values = append(values, "--set-file", "config="+teams)
		}
		return decodeAll(t, variant, render(t, values...))
	}
	return buildFolder(t, folder(t, variant))
}

func buildFolder(t *testing.T, variant string) built {
	t.Helper()
	resources, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), variant)
	if err != nil {
		t.Fatalf("kustomize build %s: %v", variant, err)
	}
	text, err := resources.AsYaml()
	if err != nil {
		t.Fatal(err)
	}
	return decodeAll(t, variant, text)
}

func decodeAll(t *testing.T, variant string, text []byte) built {
	t.Helper()
	var found built
	documents := yaml.NewDocumentDecoder(io.NopCloser(bytes.NewReader(text)))
	for _, document := range split(t, documents) {
		object, err := decode(document)
		if err != nil {
			t.Fatalf("%s: %v\n%s", variant, err, document)
		}
		switch object := object.(type) {
		case *appsv1.Deployment:
			found.deployment = object
		case *corev1.Service:
			if strings.HasSuffix(object.Name, "-ops") {
				found.ops = object
			} else {
				found.service = object
			}
		case *policyv1.PodDisruptionBudget:
			found.budget = object
		case *networkingv1.NetworkPolicy:
			found.network = object
		case *corev1.ConfigMap:
			if object.Labels["grafana_dashboard"] != "" {
				found.dashboard = object
			} else {
				found.config = object
			}
		case *corev1.ServiceAccount:
			found.account = object
		case *certmanagerv1.Certificate:
			found.certificate = object
		case *corev1.PersistentVolumeClaim:
			if strings.HasSuffix(object.Name, "-backup") {
				found.dumps = object
			} else {
				found.claim = object
			}
		case *batchv1.CronJob:
			found.backup = object
		case *monitoringv1.PodMonitor:
			found.monitor = object
		case *monitoringv1.PrometheusRule:
			found.rules = object
		default:
			t.Fatalf("%s: nothing checks a %T", variant, object)
		}
	}
	if found.deployment == nil || found.service == nil || found.budget == nil || found.network == nil ||
		found.config == nil || found.account == nil {
		t.Fatalf("%s: something is missing: %+v", variant, found)
	}
	return found
}

func split(t *testing.T, documents io.ReadCloser) [][]byte {
	t.Helper()
	var found [][]byte
	buffer := make([]byte, 1<<20)
	for {
		size, err := documents.Read(buffer)
		if errors.Is(err, io.EOF) {
			return found
		}
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, bytes.Clone(buffer[:size]))
	}
}

func each(t *testing.T, check func(t *testing.T, found built)) {
	for _, variant := range variants {
		t.Run(variant, func(t *testing.T) { check(t, build(t, variant)) })
	}
}

func TestAnUnknownFieldIsFound(t *testing.T) {
	for _, slip := range []string{
		"apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec: {clusterIp: None}",
		"apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec: {clusterIP: None, clusterIP: None}",
		"apiVersion: apps/v2\nkind: Deployment\nmetadata: {name: a}",
	} {
		if _, err := decode([]byte(slip)); err == nil {
			t.Errorf("decoded: %s", slip)
		}
	}
}

// The profile `restricted` of the Pod Security Standards, as the admission controller evaluates it.
func TestPodsAreRestricted(t *testing.T) {
	checks, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		t.Fatal(err)
	}
	restricted := api.LevelVersion{Level: api.LevelRestricted, Version: api.LatestVersion()}
	each(t, func(t *testing.T, found built) {
		pods := []corev1.PodTemplateSpec{found.deployment.Spec.Template}
		if found.backup != nil {
			pods = append(pods, found.backup.Spec.JobTemplate.Spec.Template)
		}
		for _, pod := range pods {
			for _, result := range checks.EvaluatePod(restricted, &pod.ObjectMeta, &pod.Spec) {
				if !result.Allowed {
					t.Errorf("%s: %s", result.ForbiddenReason, result.ForbiddenDetail)
				}
			}
			for _, container := range append(pod.Spec.InitContainers, pod.Spec.Containers...) {
				readOnly := container.SecurityContext.ReadOnlyRootFilesystem
				if readOnly == nil || !*readOnly {
					t.Errorf("%s can write to its image", container.Name)
				}
			}
			if token := pod.Spec.AutomountServiceAccountToken; token == nil || *token {
				t.Error("the pod holds a token of the API server")
			}
		}
	})
}

func TestWhatSelectsPodsSelectsTheseOnly(t *testing.T) {
	each(t, func(t *testing.T, found built) {
		pod := labels.Set(found.deployment.Spec.Template.Labels)
		selectors := map[string]*metav1.LabelSelector{
			"deployment": found.deployment.Spec.Selector,
			"budget":     found.budget.Spec.Selector,
			"network":    &found.network.Spec.PodSelector,
			"service":    {MatchLabels: found.service.Spec.Selector},
			"spread":     found.deployment.Spec.Template.Spec.TopologySpreadConstraints[0].LabelSelector,
		}
		for name, selector := range selectors {
			matcher, err := metav1.LabelSelectorAsSelector(selector)
			if err != nil || matcher.Empty() || !matcher.Matches(pod) {
				t.Errorf("%s selects %v, not %v", name, matcher, pod)
			}
		}
	})
}

func TestPortsAgree(t *testing.T) {
	each(t, func(t *testing.T, found built) {
		speaks := "https"
		if !found.isSecured() {
			speaks = "kubernetes.io/h2c"
		}
		ports := map[string]int32{}
		server := found.deployment.Spec.Template.Spec.Containers[0]
		for _, port := range server.Ports {
			ports[port.Name] = port.ContainerPort
		}
		if served := found.service.Spec.Ports[0]; served.TargetPort.StrVal != "grpc" || served.Port != ports["grpc"] ||
			*served.AppProtocol != speaks {
			t.Errorf("the service leads to %+v", served)
		}
		config := found.config.Data["waterwheel.toml"]
		// Operators in the pod come by a socket, to which the environment leads them.
		const socket = "unix:/run/waterwheel/ops.sock"
		for _, name := range []string{"WATERWHEEL_OPS", "WATERWHEEL_SERVER"} {
			if !slices.Contains(server.Env, corev1.EnvVar{Name: name, Value: socket}) {
				t.Errorf("operators find no socket by %+v", server.Env)
			}
		}
		mounted := func(m corev1.VolumeMount) bool { return m.MountPath == "/run/waterwheel" && !m.ReadOnly }
		if !slices.ContainsFunc(server.VolumeMounts, mounted) {
			t.Errorf("operators find no socket by %+v", server.VolumeMounts)
		}
		for _, line := range []string{"listen = \"0.0.0.0:7070\"", "ops_listen = [\"0.0.0.0:7071\", \"" + socket + "\"]"} {
			if !strings.Contains(config, "\n"+line) {
				t.Errorf("the configuration lacks %s", line)
			}
		}
		probes := map[string]*corev1.Probe{
			"readiness": server.ReadinessProbe, "liveness": server.LivenessProbe, "startup": server.StartupProbe,
		}
		for name, probe := range probes {
			asks := map[string]string{"startup": "liveness"}[name]
			if asks == "" {
				asks = name
			}
			if probe.GRPC.Port != ports["ops"] || *probe.GRPC.Service != asks {
				t.Errorf("%s asks %+v", name, probe.GRPC)
			}
		}
		for index, name := range []string{"grpc", "ops"} {
			if open := found.network.Spec.Ingress[index].Ports[0].Port.IntVal; open != ports[name] {
				t.Errorf("%s: the network lets %d through", name, open)
			}
		}
	})
}

// A file has one server at a time, on a volume that outlives it; replicas have the database.
func TestDetachedJobsHaveAPlace(t *testing.T) {
	for variant, place := range map[string]string{
		"overlays/sqlite": "PATH", "overlays/postgres": "URL",
		"sqlite+cert-manager": "PATH", "linkerd+sqlite+monitoring": "PATH", "sqlite+istio": "PATH",
		"keda+tokens+sqlite": "PATH", "overlays/teams": "URL", "helm/teams": "URL",
		"helm/volume": "PATH", "helm/postgres": "URL", "helm/istio-postgres": "URL",
		"overlays/cert-manager-postgres": "URL", "istio+postgres": "URL", "postgres+linkerd": "URL",
	} {
		found := build(t, variant)
		spec := found.deployment.Spec
		pod := spec.Template.Spec
		for _, container := range []corev1.Container{found.check(t), pod.Containers[0]} {
			at := slices.IndexFunc(container.Env, func(v corev1.EnvVar) bool { return v.Name == "WATERWHEEL_STORE__"+place })
			if at < 0 {
				t.Fatalf("%s: %s knows no store by %+v", variant, container.Name, container.Env)
			}
			if place == "URL" {
				if secret := container.Env[at].ValueFrom.SecretKeyRef; secret.Name != "waterwheel-store" || secret.Key != "url" {
					t.Errorf("%s: %s reads %+v", variant, container.Name, secret)
				}
				continue
			}
			holds := func(m corev1.VolumeMount) bool {
				return m.Name == "store" && !m.ReadOnly && strings.HasPrefix(container.Env[at].Value, m.MountPath+"/")
			}
			if !slices.ContainsFunc(container.VolumeMounts, holds) {
				t.Errorf("%s: no volume holds %s", variant, container.Env[at].Value)
			}
		}
		if place == "URL" {
			opens := func(rule networkingv1.NetworkPolicyEgressRule) bool {
				return len(rule.Ports) == 1 && rule.Ports[0].Port.IntVal == 5432
			}
			if *spec.Replicas != 2 || !slices.ContainsFunc(found.network.Spec.Egress, opens) {
				t.Errorf("%s: %d replicas, which reach %+v", variant, *spec.Replicas, found.network.Spec.Egress)
			}
			continue
		}
		claimed := func(v corev1.Volume) bool {
			return v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == found.claim.Name
		}
		if *spec.Replicas != 1 || spec.Strategy.Type != appsv1.RecreateDeploymentStrategyType ||
			!slices.ContainsFunc(pod.Volumes, claimed) {
			t.Errorf("%s: %d replicas, %s, %+v", variant, *spec.Replicas, spec.Strategy.Type, pod.Volumes)
		}
	}
}
