package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"path/filepath"

	howdah "howdah.dev/go"
)

func main() {
	client, err := howdah.New(howdah.Config{})
	if err != nil {
		log.Fatal(err)
	}
	files, _ := filepath.Glob(filepath.Join(os.Args[1], "*.png"))
	names, ids, ctx := map[int64]string{}, []int64{}, context.Background()
	for _, source := range files {
		name := filepath.Base(source)
		payload := map[string]any{"source": source, "target": filepath.Join(os.Args[2], name), "width": 128}
		job, err := client.Enqueue(ctx, "thumbnail.make", payload, howdah.Key(source))
		if err != nil {
			log.Fatal(err)
		}
		names[job.Id], ids = name, append(ids, job.Id)
	}
	for job, err := range client.Wait(ctx, ids...) {
		var size struct{ Width, Height int }
		if err != nil {
			log.Fatal(err)
		} else if json.Unmarshal(job.Result, &size) == nil {
			fmt.Printf("%s %dx%d\n", names[job.Id], size.Width, size.Height)
		} else {
			log.Println(names[job.Id], job.State)
		}
	}
}
