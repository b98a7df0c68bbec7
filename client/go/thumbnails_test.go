package howdah_test

import (
	"image"
	"image/png"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestTheThumbnailsOfTheExampleAreMade(t *testing.T) {
	t.Parallel()
	programs, source, target := t.TempDir(), t.TempDir(), t.TempDir()
	build := exec.Command("go", "build", "-o", programs, "./...")
	build.Dir = "../../examples/thumbnails/go"
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	file, err := os.Create(filepath.Join(source, "wide.png"))
	must(t, err)
	must(t, png.Encode(file, image.NewRGBA(image.Rect(0, 0, 400, 200))))
	must(t, file.Close())
	must(t, os.WriteFile(filepath.Join(source, "not.png"), []byte("no image"), 0o644))

	worker := exec.Command(filepath.Join(programs, "worker"))
	worker.Stderr = t.Output()
	must(t, worker.Start())
	producer := exec.CommandContext(within(t, time.Minute), filepath.Join(programs, "producer"), source, target)
	output, err := producer.CombinedOutput()
	if err != nil || !strings.Contains(string(output), "wide.png 128x64\n") {
		t.Errorf("%v\n%s", err, output)
	}
	must(t, worker.Process.Signal(syscall.SIGTERM))
	must(t, worker.Wait())
	small, err := os.Open(filepath.Join(target, "wide.png"))
	must(t, err)
	defer small.Close()
	size, err := png.DecodeConfig(small)
	if err != nil || size.Width != 128 || size.Height != 64 {
		t.Error(size, err)
	}
}
