package container

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"speedmatrix/pipelines"
	"speedmatrix/pipelines/supervise"
)

// argVariable is where a word of the command is kept that holds a secret. The command
// itself says only which one: it passes through queries and logs of the container engine.
const argVariable = "SPEEDMATRIX_ARG_"

// SecretWord stands in a command for its n-th word that holds a secret; the word itself
// is the value of the variable.
func SecretWord(n int) (word, variable string) {
	variable = fmt.Sprintf("%s%d", argVariable, n)
	return "@" + variable, variable
}

// withSecrets puts the words back.
func withSecrets(argv, environ []string) []string {
	out := make([]string, len(argv))
	for i, word := range argv {
		out[i] = word
		name, ok := strings.CutPrefix(word, "@")
		if !ok || !strings.HasPrefix(name, argVariable) {
			continue
		}
		for _, kv := range environ {
			if value, ok := strings.CutPrefix(kv, name+"="); ok {
				out[i] = value
			}
		}
	}
	return out
}

// secretsOf lists what must not be written.
func secretsOf(environ []string) []string {
	var out []string
	// A list that cannot be read was not made by us; the key alone is then known.
	_ = json.Unmarshal([]byte(supervise.Getenv(environ, SecretsVariable)), &out)
	for _, name := range []string{pipelines.KeyVariable, KeyVariable} {
		if v := supervise.Getenv(environ, name); v != "" && !slices.Contains(out, v) {
			out = append(out, v)
		}
	}
	return out
}
