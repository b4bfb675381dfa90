package deploy

import (
	"os"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"
)

const compose = "../../deploy/compose/"

// The replicas have the addresses that the proxy knows, and the time that their configuration needs.
func TestComposeFitsItsConfiguration(t *testing.T) {
	text, err := os.ReadFile(compose + "compose.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Services map[string]struct {
			Environment map[string]string
			Volumes     []string
			Networks    map[string]struct {
				Address string `json:"ipv4_address"`
			}
			Grace string `json:"stop_grace_period"`
		}
	}
	// The database is in the network without an address, as a list.
	text = []byte(strings.Replace(string(text), "networks: [pool]", "networks: {pool: {}}", 1))
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	proxy, err := os.ReadFile(compose + "../proxy/haproxy.cfg")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"one", "two"} {
		replica := file.Services[name]
		address := replica.Networks["pool"].Address
		if address == "" || !strings.Contains(string(proxy), "server "+name+" "+address+":7070\n") {
			t.Errorf("the proxy does not know %s at %q", name, address)
		}
		grace, err := time.ParseDuration(replica.Grace)
		if err != nil || replica.Environment["WATERWHEEL_GRACE"]+"s" != replica.Grace {
			t.Errorf("%s: %v: %s is not %+v", name, err, replica.Grace, replica.Environment)
		}
		found := check(t, compose+"waterwheel.toml", replica.Environment["WATERWHEEL_GRACE"])["grace"]
		if found.Verdict != "fits" || found.Have != grace.Milliseconds() {
			t.Errorf("%s: %+v", name, found)
		}
		url := replica.Environment["WATERWHEEL_STORE__URL"]
		database := file.Services["db"].Environment
		if !strings.HasSuffix(url, "@db/"+database["POSTGRES_DB"]+"?sslmode=disable") ||
			!strings.Contains(url, "//"+database["POSTGRES_USER"]+":"+strings.TrimSpace(database["POSTGRES_PASSWORD"])) {
			t.Errorf("%s stores in %s, which is not %+v", name, url, database)
		}
	}
	for name, service := range file.Services {
		for _, volume := range service.Volumes {
			if source, _, _ := strings.Cut(volume, ":"); strings.HasPrefix(source, ".") {
				if _, err := os.Stat(compose + source); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
		}
	}
}
