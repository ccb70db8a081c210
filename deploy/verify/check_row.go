package main

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"strings"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

func main() { // row.json, row.tlog-proof and the key of the log
	must := func(err error) {
		if err != nil {
			log.Fatal(err)
		}
	}
	rowText, _ := os.ReadFile(os.Args[1])
	proofText, _ := os.ReadFile(os.Args[2])
	verifier, err := note.NewVerifier(os.Args[3])
	must(err)
	head, checkpoint, _ := strings.Cut(string(proofText), "\n\n")
	signed, err := note.Open([]byte(checkpoint), note.VerifierList(verifier))
	must(err)
	var size, index int64
	var rootText, saltText string
	fmt.Sscanf(signed.Text, verifier.Name()+"\n%d\n%s", &size, &rootText)
	root, err := tlog.ParseHash(rootText)
	must(err)
	lines := strings.Split(head, "\n")
	fmt.Sscanf(lines[1]+"\n"+lines[2], "extra %s\nindex %d", &saltText, &index)
	var path tlog.RecordProof
	for _, line := range lines[3:] {
		hash, err := tlog.ParseHash(line)
		must(err)
		path = append(path, hash)
	}
	row := map[string]any{}
	must(json.Unmarshal(rowText, &row))
	delete(row, "asset_class")
	delete(row, "indicator_name")
	canonical, _ := json.Marshal(row)
	salt, _ := base64.StdEncoding.DecodeString(saltText)
	must(tlog.CheckRecord(path, size, root, index, tlog.RecordHash(append(salt, canonical...))))
	fmt.Println("leaf", index, "of", size)
}
