package container

import (
	"fmt"
	"strings"
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
