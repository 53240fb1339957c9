package simulator

import "strings"

// The answer's text is made of words by index, so that it is the same for the same
// seed, costs nothing to make and never repeats itself exactly: the loop guard of
// a client must stay silent. Each word with its leading space is one token.

const (
	syllableHeads = "b d f g k l m n p r s t v z br dr gr kl pr st"
	syllableTails = "a e i o u an el in or um ar"
)

// makeWords lists words of two syllables, at most eight letters, each with a leading space.
func makeWords() []string {
	heads, tails := strings.Fields(syllableHeads), strings.Fields(syllableTails)
	var out []string
	for i, h := range heads {
		for j, t := range tails {
			for k := range 5 {
				out = append(out, " "+h+t+heads[(i*7+j*3+k*11+1)%len(heads)]+tails[(j+i+k*2)%len(tails)])
			}
		}
	}
	return out
}

// word picks the i-th word of an answer. The mixing is splitmix64, whose outputs
// for successive i have no period a client could see.
func (s *Server) word(seed uint64, i int) string {
	if s.profile.Loop {
		return s.words[i&1]
	}
	z := seed + uint64(i)*0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	z ^= z >> 31
	return s.words[z%uint64(len(s.words))]
}
