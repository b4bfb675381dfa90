package deploy

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// replica is a server that runs.
type replica struct{ namespace, public, ops string }

// Two of namespace `shop` share PostgreSQL, and one of namespace `lab` has a file. Each has all that has series.
const configured = `
server.listen = "127.0.0.1:0"
server.ops_listen = ["127.0.0.1:0"]
server.json = true
server.tls = { cert = "SECRET/tls.crt", key = "SECRET/tls.key", client_ca = "SECRET/ca.crt", client_auth = "optional" }
drain = { notice = "0s", finish = "1s", kill = "1s" }
quota.rate = 18
quota.tenant.shop.rate = 100
auth.rule.all = { principals = ["anonymous"], rpcs = ["*"] }
[pool.cpu]
workers = 1
queue = { jobs = 2, bytes = "8MiB" }
[kind.sleep]
pool = "cpu"
builtin = "sleep"
[pool.rest]
[kind.fail]
pool = "rest"
exec = ["/bin/false"]
[program.stays]
command = ["/bin/sh", "-c", "echo '{\"ready\":{\"protocol\":1}}' >&4; while read line <&3; do :; done"]
[kind.stays]
pool = "rest"
program = "stays"
[pool.far]
[kind.far]
pool = "far"
remote = true
[store]
`

func startReplicas(t *testing.T) []replica {
	secret := mount(t)
	shop := "url = \"" + startPostgres(t) + "\"\n"
	return []replica{
		serve(t, "shop", strings.ReplaceAll(configured, "SECRET", secret)+shop),
		serve(t, "shop", strings.ReplaceAll(configured, "SECRET", secret)+shop),
		serve(t, "lab", strings.ReplaceAll(configured, "SECRET", secret)+"path = \"jobs.db\"\n"),
	}
}

func serve(t *testing.T, namespace, configuration string) replica {
	t.Helper()
	directory := t.TempDir()
	file := filepath.Join(directory, "waterwheel.toml")
	if err := os.WriteFile(file, []byte(configuration), 0o600); err != nil {
		t.Fatal(err)
	}
	command := exec.Command(program(t), "serve", "--config", file)
	said, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	log := run(t, command, syscall.SIGTERM)
	lines := bufio.NewScanner(said)
	lines.Scan()
	words := strings.Fields(lines.Text())
	if len(words) < 2 || words[0] != "grpc" || !strings.Contains(lines.Text(), "ops http://") {
		t.Fatalf("it says %q\n%s", lines.Text(), log())
	}
	_, ops, _ := strings.Cut(lines.Text(), "ops http://")
	return replica{namespace, words[1], strings.Fields(ops)[0]}
}

// run starts a program that ends with this test, and returns what reads its log.
func run(t *testing.T, command *exec.Cmd, end syscall.Signal) func() string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "log")
	log, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	command.Stderr = log
	if command.SysProcAttr == nil {
		command.SysProcAttr = &syscall.SysProcAttr{}
	}
	// It ends, too, if this process is killed.
	command.SysProcAttr.Pdeathsig = end
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	read := func() string {
		text, _ := os.ReadFile(path)
		return string(text)
	}
	t.Cleanup(func() {
		command.Process.Signal(end)
		command.Wait()
		log.Close()
		if t.Failed() {
			t.Logf("%s:\n%.3000s", command.Path, read())
		}
	})
	return read
}

// startPostgres starts a server without a network and returns the URL of a database.
func startPostgres(t *testing.T) string {
	t.Helper()
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin")
	if len(found) == 0 {
		t.Fatal("PostgreSQL is not in /usr/lib/postgresql; install Debian's package postgresql")
	}
	// Short enough for the path of a socket, and open to the server's user.
	directory, err := os.MkdirTemp("", "ww-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(directory) })
	var user *syscall.SysProcAttr
	if os.Geteuid() == 0 {
		// PostgreSQL refuses to run as root.
		const nobody = 65534
		if err := os.Chown(directory, nobody, nobody); err != nil {
			t.Fatal(err)
		}
		user = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	}
	data := filepath.Join(directory, "data")
	made := exec.Command(found[0]+"/initdb", "--auth=trust", "--username=test", "--encoding=UTF8", "--locale=C", "--no-sync", "-D", data)
	made.SysProcAttr = user
	if output, err := made.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	server := exec.Command(found[0]+"/postgres", "-D", data, "-k", directory, "-c", "listen_addresses=", "-c", "fsync=off")
	server.SysProcAttr = user
	run(t, server, syscall.SIGQUIT)
	until(t, func() string {
		output, err := exec.Command(found[0]+"/pg_isready", "-h", directory, "-U", "test", "-d", "postgres").CombinedOutput()
		if err != nil {
			return string(output)
		}
		return ""
	})
	return "postgres://test@" + strings.ReplaceAll(directory, "/", "%2F") + "/postgres"
}

// The certificate signs itself, for no name.
var client = http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}

// call sends a request in JSON and returns the answer, or the error.
func (r replica) call(method, body string) string {
	url := fmt.Sprintf("https://%s/waterwheel.v1.%s", r.public, method)
	answer, err := client.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		return err.Error()
	}
	defer answer.Body.Close()
	text, _ := io.ReadAll(answer.Body)
	return string(text)
}

// create makes a detached job. The load uses up the quota, so that it may take some tries.
func (r replica) create(t *testing.T, body string) {
	t.Helper()
	until(t, func() string {
		answer := r.call("JobService/CreateJob", body)
		if strings.Contains(answer, `"jobId"`) {
			return ""
		}
		return answer
	})
}

// load sends more jobs than the pool can run, and than the quota allows, until the test ends.
func (r replica) load(t *testing.T) {
	ticks := time.NewTicker(40 * time.Millisecond)
	t.Cleanup(ticks.Stop)
	go func() {
		for range ticks.C {
			go r.call("WorkerPoolService/Submit", `{"job": {"kind": "sleep", "payload": "MTAw"}}`)
			go r.call("JobService/GetJob", `{"jobId": "later-0"}`)
		}
	}()
}

// until waits for what is awaited to be there: as long as something is missing, it is said what.
func until(t *testing.T, missing func() string) {
	t.Helper()
	const patience = 50 * time.Second
	for begun := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		said := missing()
		if said == "" {
			return
		}
		if time.Since(begun) > patience {
			t.Fatalf("after %s: %s", patience, said)
		}
	}
}
