package howdah_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// blocks returns the Go code blocks of the README.
func blocks(t *testing.T) (found []string) {
	text, err := os.ReadFile("README.md")
	must(t, err)
	for _, part := range strings.Split(string(text), "```go\n")[1:] {
		found = append(found, part[:strings.Index(part, "```")])
	}
	return found
}

// snippetHead completes code blocks of the README that are only part of a function to a program. The verb is for more
// imports.
const snippetHead = `package main

import (
	"context"
	"log"

	howdah "howdah.dev/go"
	%s
)

func main() {
	client, err := howdah.New(howdah.Config{})
	if err == nil {
		err = importRows(context.Background(), client, []string{"a", "b"})
	}
	if err != nil {
		log.Fatal(err)
	}
}

func importRows(ctx context.Context, client *howdah.Client, rows []string) error {
`

func TestTheModuleIsInstalledIntoAnEmptyProjectWhichRunsTheProgramsOfTheReadme(t *testing.T) {
	t.Parallel()
	proxy, project := t.TempDir(), t.TempDir()
	version := fmt.Sprintf("v0.1.0-test.%d", time.Now().UnixNano())
	here, err := os.Getwd()
	must(t, err)
	run := func(dir string, environment []string, arguments ...string) string {
		t.Helper()
		command := exec.CommandContext(within(t, 5*time.Minute), "go", arguments...)
		command.Dir, command.Env = dir, append(os.Environ(), environment...)
		output, err := command.CombinedOutput()
		if err != nil {
			t.Fatalf("go %v: %v\n%s", arguments, err, output)
		}
		return strings.TrimSpace(string(output))
	}
	run("tools", nil, "run", "./pack", here, proxy, version)
	cache := run(here, nil, "env", "GOMODCACHE")
	t.Cleanup(func() {
		for _, left := range []string{"howdah.dev/go@" + version, "cache/download/howdah.dev/go/@v"} {
			path := filepath.Join(cache, left)
			exec.Command("chmod", "-R", "u+w", path).Run()
			os.RemoveAll(path)
		}
	})
	proxies := "GOPROXY=file://" + proxy + "," + run(here, nil, "env", "GOPROXY")
	environment := []string{proxies, "GOSUMDB=off", "GOFLAGS=-mod=mod -modcacherw"}
	run(project, environment, "mod", "init", "example.com/project")
	run(project, environment, "get", "howdah.dev/go@"+version)
	for i, name := range []string{"worker", "producer"} {
		must(t, os.Mkdir(filepath.Join(project, name), 0o755))
		must(t, os.WriteFile(filepath.Join(project, name, "main.go"), []byte(blocks(t)[i]), 0o644))
	}
	imports := []string{"", "", `"time"; "google.golang.org/protobuf/types/known/durationpb"; "howdah.dev/go/howdahv1"`}
	for i, more := range imports {
		snippet := fmt.Sprintf("snippet%d", i)
		must(t, os.Mkdir(filepath.Join(project, snippet), 0o755))
		program := fmt.Sprintf(snippetHead, more) + blocks(t)[2+i] + "}\n"
		must(t, os.WriteFile(filepath.Join(project, snippet, "main.go"), []byte(program), 0o644))
		run(project, environment, "run", "./"+snippet)
	}
	run(project, environment, "build", "-o", "bin/", "./worker", "./producer")

	worker := exec.Command(filepath.Join(project, "bin", "worker"))
	var log bytes.Buffer
	worker.Stderr = &log
	must(t, worker.Start())
	output, err := exec.CommandContext(within(t, time.Minute), filepath.Join(project, "bin", "producer")).CombinedOutput()
	must(t, err)
	if !strings.Contains(string(output), `JOB_STATE_SUCCEEDED "sent to ann@example.com" <nil>`) {
		t.Errorf("the producer: %s", output)
	}
	must(t, worker.Process.Signal(syscall.SIGTERM))
	if err := worker.Wait(); err != nil || !strings.HasSuffix(log.String(), "<nil>\n") {
		t.Errorf("the worker: %v\n%s", err, log.String())
	}
}
