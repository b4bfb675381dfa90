package deploy

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

const dashboard = monitoring + "dashboard.json"

func TestPrometheusFindsThePods(t *testing.T) {
	for _, variant := range []string{"postgres+monitoring", "helm/cert-manager"} {
		found := build(t, variant)
		pod := found.deployment.Spec.Template
		spec := found.monitor.Spec
		for label, value := range spec.Selector.MatchLabels {
			if pod.Labels[label] != value {
				t.Errorf("pods have %v, not %s=%s", pod.Labels, label, value)
			}
		}
		port := *spec.PodMetricsEndpoints[0].Port
		if !slices.ContainsFunc(pod.Spec.Containers[0].Ports, func(p corev1.ContainerPort) bool { return p.Name == port }) {
			t.Errorf("no port is called %s", port)
		}
		text, err := os.ReadFile(rules)
		if err != nil {
			t.Fatal(err)
		}
		job := pod.Labels[spec.JobLabel]
		if selected := strings.Count(string(text), "up{"); job == "" || selected != strings.Count(string(text), `up{job="`+job+`"}`) {
			t.Errorf("Prometheus calls the job %q, and the alerts do not", job)
		}
		file, err := os.ReadFile(dashboard)
		if err != nil || found.dashboard.Data["dashboard.json"] != string(file) {
			t.Errorf("the ConfigMap has another dashboard (%v)", err)
		}
	}
}

// target is one query of a panel.
type target struct{ panel, expression, legend string }

type panel struct {
	Id          int
	Type, Title string
	GridPos     struct{ X, Y, W, H int }
	Datasource  struct{ Uid string }
	Targets     []struct{ Expr, LegendFormat string }
}

func panels(t *testing.T) []panel {
	t.Helper()
	text, err := os.ReadFile(dashboard)
	if err != nil {
		t.Fatal(err)
	}
	var read struct {
		Uid    string
		Panels []panel
	}
	if err := json.Unmarshal(text, &read); err != nil || read.Uid != "waterwheel" {
		t.Fatalf("%s is called %q: %v", dashboard, read.Uid, err)
	}
	return read.Panels
}

func TestPanelsHaveTheirPlaces(t *testing.T) {
	owner := map[[2]int]string{}
	ids := map[int]string{}
	for _, panel := range panels(t) {
		if other, taken := ids[panel.Id]; taken {
			t.Errorf("%q and %q are both %d", panel.Title, other, panel.Id)
		}
		ids[panel.Id] = panel.Title
		if panel.Type != "row" && (panel.Datasource.Uid != "${datasource}" || len(panel.Targets) == 0) {
			t.Errorf("%q asks %q %d times", panel.Title, panel.Datasource.Uid, len(panel.Targets))
		}
		for x := panel.GridPos.X; x < panel.GridPos.X+panel.GridPos.W; x++ {
			for y := panel.GridPos.Y; y < panel.GridPos.Y+panel.GridPos.H; y++ {
				if other, taken := owner[[2]int{x, y}]; taken || x >= 24 {
					t.Fatalf("%q is at the place of %q, or outside", panel.Title, other)
				}
				owner[[2]int{x, y}] = panel.Title
			}
		}
	}
}

// Real replicas, under more load than they bear, and a real Prometheus: each rule evaluates, the right alerts are raised,
// and each query of each panel has data.
func TestRulesAndPanelsOverRealReplicas(t *testing.T) {
	replicas := startReplicas(t)
	server := startPrometheus(t, replicas)
	for at := range 3 {
		body := fmt.Sprintf(`{"jobId": "later-%d", "job": {"kind": "sleep", "payload": "MTAw"}, "options": {"delay": "3600s"}}`, at)
		replicas[0].create(t, body)
	}
	for _, replica := range replicas {
		replica.load(t)
	}
	// An alert about a change needs to have seen the time before it.
	until(t, func() string {
		if seen := server.query(t, `waterwheel_detached_jobs{namespace="shop",kind="fail",state="dead"} == 0`); len(seen) != 2 {
			return fmt.Sprintf("%d replicas show the store", len(seen))
		}
		return ""
	})
	body := `{"jobId": "fails", "job": {"kind": "fail"}, "options": {"retry": {"maxAttempts": 1}}}`
	replicas[1].create(t, body)
	for _, target := range targets(t) {
		until(t, func() string { return server.missing(t, target) })
	}
	until(t, func() string { return server.otherAlerts(t) })
	until(t, func() string { return server.unknownRules(t) })
	for _, expression := range alerts(t) {
		for _, selector := range selectors.FindAllString(expression, -1) {
			// Absent where all is well.
			if len(server.query(t, selector)) == 0 {
				t.Errorf("a rule reads %s, which no server has", selector)
			}
		}
	}
	// Each replica counts the whole store.
	stored := server.query(t, strings.ReplaceAll(panelOf(t, "Detached jobs by state"), "$namespace", "shop"))
	right := func(s series) bool { return s.Metric["state"] == "scheduled" && s.value() == "3" }
	if !slices.ContainsFunc(stored, right) {
		t.Errorf("3 jobs are scheduled, and not %+v", stored)
	}
}

// A metric with its labels, as in an expression.
var selectors = regexp.MustCompile(`\b(waterwheel|tokio|rpc|up)(_[a-z_]+|\{)[^}\[) ]*\}?`)

func targets(t *testing.T) []target {
	var found []target
	for _, panel := range panels(t) {
		for _, query := range panel.Targets {
			found = append(found, target{panel.Title, query.Expr, query.LegendFormat})
		}
	}
	return found
}

func panelOf(t *testing.T, title string) string {
	t.Helper()
	all := targets(t)
	at := slices.IndexFunc(all, func(t target) bool { return t.panel == title })
	if at < 0 {
		t.Fatalf("no panel %q", title)
	}
	return all[at].expression
}

// prometheus is a server of that, by its URL.
type prometheus string

func startPrometheus(t *testing.T, replicas []replica) prometheus {
	t.Helper()
	file, err := filepath.Abs(rules)
	if err != nil {
		t.Fatal(err)
	}
	text := "global: {scrape_interval: 1s, evaluation_interval: 1s}\nrule_files: [" + file + "]\n" +
		"scrape_configs:\n  - job_name: waterwheel\n    static_configs:\n"
	for _, replica := range replicas {
		text += fmt.Sprintf("      - {targets: ['%s'], labels: {namespace: %s}}\n", replica.ops, replica.namespace)
	}
	directory := t.TempDir()
	configuration := filepath.Join(directory, "prometheus.yml")
	if err := os.WriteFile(configuration, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	listener.Close()
	run(t, exec.Command("prometheus", "--config.file="+configuration, "--storage.tsdb.path="+directory+"/data",
		"--web.listen-address="+address), syscall.SIGKILL)
	until(t, func() string {
		answer, err := http.Get("http://" + address + "/-/ready")
		if err != nil {
			return err.Error()
		}
		answer.Body.Close()
		return strings.TrimPrefix(answer.Status, "200 OK")
	})
	return prometheus("http://" + address + "/api/v1/")
}

func (p prometheus) get(t *testing.T, path string, data any) {
	t.Helper()
	answer, err := http.Get(string(p) + path)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	read := struct {
		Status, Error string
		Data          any
	}{Data: data}
	if err := json.NewDecoder(answer.Body).Decode(&read); err != nil || read.Status != "success" {
		t.Fatalf("%s: %v %s", path, err, read.Error)
	}
}

type series struct {
	Metric map[string]string
	Value  [2]any
}

func (s series) value() string { return fmt.Sprint(s.Value[1]) }

func (p prometheus) query(t *testing.T, expression string) []series {
	t.Helper()
	for variable, value := range map[string]string{"$namespace": ".*", "$pool": ".*", "$__rate_interval": "5s"} {
		expression = strings.ReplaceAll(expression, variable, value)
	}
	var data struct{ Result []series }
	p.get(t, "query?query="+url.QueryEscape(expression), &data)
	return data.Result
}

// missing is what a query lacks to draw a line: a figure, or a label that its legend names.
func (p prometheus) missing(t *testing.T, target target) string {
	t.Helper()
	drawn := 0
	for _, series := range p.query(t, target.expression) {
		for _, label := range regexp.MustCompile(`\{\{(\w+)\}\}`).FindAllStringSubmatch(target.legend, -1) {
			if series.Metric[label[1]] == "" {
				t.Fatalf("the legend of %q names %s, and a series is %v", target.panel, label[1], series.Metric)
			}
		}
		// A quotient or a percentile of nothing is none.
		if figure, err := strconv.ParseFloat(series.value(), 64); err == nil && figure == figure {
			drawn++
		}
	}
	if drawn == 0 {
		return fmt.Sprintf("%q has no data by %s", target.panel, target.expression)
	}
	return ""
}

// unknownRules are those that were not evaluated yet. An evaluation that fails is fatal.
func (p prometheus) unknownRules(t *testing.T) string {
	t.Helper()
	var data struct {
		Groups []struct {
			Rules []struct{ Name, Health, LastError string }
		}
	}
	p.get(t, "rules", &data)
	unknown, seen := "", 0
	for _, group := range data.Groups {
		for _, rule := range group.Rules {
			seen++
			switch rule.Health {
			case "unknown":
				unknown += rule.Name + " is not evaluated yet "
			case "ok":
			default:
				t.Fatalf("%s: %s", rule.Name, rule.LastError)
			}
		}
	}
	if seen != len(alerts(t)) {
		t.Fatalf("Prometheus has %d rules", seen)
	}
	return unknown
}

// otherAlerts are the alerts if they are not the right ones. One that fires falsely is fatal.
func (p prometheus) otherAlerts(t *testing.T) string {
	t.Helper()
	// The certificates of these replicas are good for an hour; a job failed, which both replicas of `shop` show; and each
	// pool refuses jobs, which has to go on for some minutes.
	right := []string{
		"WaterwheelCertificateExpires lab firing", "WaterwheelCertificateExpires shop firing",
		"WaterwheelDetachedJobsFail shop firing", "WaterwheelRefusesWork lab pending", "WaterwheelRefusesWork shop pending",
	}
	var data struct {
		Alerts []struct {
			Labels map[string]string
			State  string
		}
	}
	p.get(t, "alerts", &data)
	raised := []string{}
	for _, alert := range data.Alerts {
		name := alert.Labels["alertname"] + " " + alert.Labels["namespace"] + " " + alert.State
		if alert.State == "firing" && !slices.Contains(right, name) {
			t.Fatalf("%v fires", alert.Labels)
		}
		if slices.Contains(right, name) {
			raised = append(raised, name)
		}
	}
	if slices.Sort(raised); !slices.Equal(raised, right) {
		return fmt.Sprintf("alerts are %v", raised)
	}
	return ""
}
