package deploy

import (
	"slices"
	"strings"
	"testing"

	"istio.io/api/annotation"
	"istio.io/api/label"
	corev1 "k8s.io/api/core/v1"
)

// A mesh balances calls to an address of the service; without one, clients balance by the addresses of the pods.
func TestOnlyMeshesHaveAnAddress(t *testing.T) {
	for _, variant := range variants {
		headless := build(t, variant).service.Spec.ClusterIP == corev1.ClusterIPNone
		if headless != slices.Contains(secured, variant) {
			t.Errorf("%s: headless %v", variant, headless)
		}
	}
}

// Names that Istio does not know do nothing, silently.
func TestIstioKnowsItsNames(t *testing.T) {
	known := map[string]bool{}
	for _, instance := range annotation.AllResourceAnnotations() {
		known[instance.Name] = true
	}
	for _, instance := range label.AllResourceLabels() {
		known[instance.Name] = true
	}
	checked := 0
	for _, variant := range []string{"overlays/istio", "helm/istio-postgres"} {
		template := build(t, variant).deployment.Spec.Template
		for _, names := range []map[string]string{template.Annotations, template.Labels} {
			for name := range names {
				if strings.Contains(name, "istio.io/") {
					checked++
					if !known[name] {
						t.Errorf("Istio knows no %s", name)
					}
				}
			}
		}
	}
	if checked != 8 {
		t.Errorf("%d names of Istio", checked)
	}
}
