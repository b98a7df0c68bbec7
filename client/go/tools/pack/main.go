// Command pack writes the module in DIRECTORY to PROXY, a directory with the layout of a Go module proxy: pack DIRECTORY
// PROXY VERSION.
package main

import (
	"fmt"
	"log"
	"os"
	"path/filepath"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"
	"golang.org/x/mod/zip"
)

func main() {
	if len(os.Args) != 4 {
		log.Fatal("usage: pack DIRECTORY PROXY VERSION")
	}
	if err := pack(os.Args[1], os.Args[2], os.Args[3]); err != nil {
		log.Fatal(err)
	}
}

func pack(directory, proxy, version string) error {
	mod, err := os.ReadFile(filepath.Join(directory, "go.mod"))
	if err != nil {
		return err
	}
	path := modfile.ModulePath(mod)
	base := filepath.Join(proxy, filepath.FromSlash(path), "@v")
	if err := os.MkdirAll(base, 0o755); err != nil {
		return err
	}
	info := fmt.Sprintf(`{"Version": %q}`, version)
	for name, text := range map[string]string{"list": version + "\n", version + ".info": info, version + ".mod": string(mod)} {
		if err := os.WriteFile(filepath.Join(base, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	file, err := os.Create(filepath.Join(base, version+".zip"))
	if err != nil {
		return err
	}
	if err := zip.CreateFromDir(file, module.Version{Path: path, Version: version}, directory); err != nil {
		return err
	}
	return file.Close()
}
