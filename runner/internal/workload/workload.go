// Package workload decides what is sent: prompts whose length in tokens is the
// one that was asked, that no engine has seen before, and that are the same
// again for the same nonce.
//
// It does not know HTTP, trials or clocks: it is given a [Counter], which asks
// the server how many tokens a text is, and returns text. It does not believe the
// counter: a count that no tokenizer could give ([Plausible]) is taken for none, and
// whatever the counts are, a prompt takes at most [MaxCalls] of them and its text
// stays below 64 bytes for each token asked and some kilobytes, and below [MaxText].
//
// A prompt is, from the front:
//
//	nonce    a line that is different in every run and wherever prompts must
//	         differ, so that a prefix cache never holds what follows
//	body     words of a fixed list in an order drawn from a fixed seed
//	filler   short words that make the length come out exactly
//	request  what the model is asked to do; only where output is wanted
//
// How the length is made exact with few calls:
//
//  1. The first prompt of a builder counts two samples, which gives what the chat
//     template adds and how many tokens a word is.
//  2. A new length starts from that estimate, is counted whole, corrected by
//     words, and then by filler, until the count is the one asked; at most
//     [MaxCalls] calls in all, the nearest text wins.
//  3. The same length again, under another nonce, takes the words and filler over.
//     At and above [headOnly] tokens only its head is counted and the difference
//     is taken up by the filler, since 0.1 % of such a length is more than
//     counting head and body apart can be off; below it, the whole is counted
//     again.
//
// Words are drawn at random, not repeated, so that a draft model or n-gram
// speculation has no cycle to profit from. The list and the generator are part of
// the method: changing either can move a number.
package workload

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
)

// MaxCalls bounds the calls of the counter for one prompt, the two samples of a
// new builder included.
const MaxCalls = 8

// headOnly is the length from which a known body is not counted again.
const headOnly = 16_384

// reserve is how many filler words a body carries, so that a longer head can be
// made up for by taking some away.
const reserve = 24

// sampleWords is the length of the text that tells how long a word is.
const sampleWords = 512

// MaxText bounds the text of a prompt, in bytes, however long it is asked to be:
// that of 16 million tokens.
const MaxText = 256 << 20

// No text is longer than this: words of at most 11 bytes and filler of 2, so many
// of each for a token asked, are less than 64 bytes for it. No tokenizer takes four
// words into one token.
const (
	wordsPerToken = 4
	someWords     = 512
	wordBytes     = 11
)

// ErrNoCounter is returned by a [Counter] when the server cannot count; the error may
// say why. The builder then estimates, and says so.
var ErrNoCounter = errors.New("the server counts no tokens")

// Plausible says whether a text of so many bytes can be so many tokens. A token is at
// least one byte, and at most 64 in a text of words; a chat template adds up to
// 65,536 of its own, and short texts are left in peace.
func Plausible(bytes int, tokens int64) bool {
	return tokens > 0 && tokens <= int64(bytes)+1<<16 && tokens >= int64(bytes-1024)>>6
}

// implausible is an [ErrNoCounter]: what cannot be right is no count.
type implausible struct {
	tokens int64
	bytes  int
}

func (e *implausible) Error() string {
	return fmt.Sprintf("the server counts %d tokens for %d bytes: that cannot be used", e.tokens, e.bytes)
}

func (e *implausible) Is(target error) bool { return target == ErrNoCounter }

// Counter says how many prompt tokens a user message of this text is for the
// server, chat template included.
type Counter func(ctx context.Context, text string) (int64, error)

// Task is what a prompt asks the model for.
type Task int

const (
	Prefill Task = iota // nothing: one token is generated and ignored
	Decode              // a text as long as it will go on
)

func (t Task) request() string {
	if t == Decode {
		return "What stands above is only there to be read. Now write a very long and detailed story about a journey by sea. " +
			"Describe every day of it in its own chapter, never repeat a sentence, and go on without stopping."
	}
	return ""
}

// Prompt is one user message. It holds how its text is made, not the text: a
// matrix can have gigabytes of them.
type Prompt struct {
	// Tokens is the length by the server's count; nil where it was estimated.
	Tokens *int64
	// Exact is set when Tokens is the count of this very text, and not put
	// together from the counts of its parts.
	Exact bool

	head  string
	shape shape
	task  Task
}

// Text makes the text, the same each time.
func (p Prompt) Text() string { return render(p.head, p.shape, p.task) }

// bytes is about how long the text is, without making it: words have 6 on average.
func (p Prompt) bytes() int {
	return len(p.head) + 6*p.shape.words + 2*p.shape.filler + len(p.task.request())
}

// LengthOff says that a count of this prompt cannot be right: it is more than 10 %
// and 64 tokens from what the server counted before, or, where it did not count, it
// is one that no tokenizer could give.
func (p Prompt) LengthOff(tokens int64) bool {
	if p.Tokens == nil {
		return !Plausible(p.bytes(), tokens)
	}
	// A count can be as far out as a number can be: nothing is multiplied by it.
	off := max(*p.Tokens/10, 64)
	return tokens < *p.Tokens-off || tokens > *p.Tokens+off
}

// Builder makes the prompts of one launch. It is not safe for use by several
// goroutines at once.
type Builder struct {
	count Counter

	noCounter error // why the server's counts are not used; nil: they are
	calls     int   // of the prompt being built
	overhead  int64 // tokens of an almost empty message: what the template adds, and one
	sampled   bool
	// A word is wordTokens/wordCount tokens: kept as two numbers, of the longest
	// text that was counted.
	wordTokens, wordCount int64
	known                 map[key]shape
}

type key struct {
	tokens int
	task   Task
}

// shape of a text whose length is known.
type shape struct {
	words, filler int
	total         int64 // tokens of the whole
	head          int64 // tokens of its head, counted alone
	counted       bool  // head is known
}

// NewBuilder returns a builder that counts with count.
func NewBuilder(count Counter) *Builder {
	return &Builder{count: count, wordTokens: firstTokens, wordCount: firstWords, known: make(map[key]shape)}
}

// Until the server said better: common English words with a blank are a little more
// than one token in the vocabularies in use.
const firstTokens, firstWords = 11, 10

// Estimated says that the server cannot count, so lengths are estimates.
func (b *Builder) Estimated() bool { return b.noCounter != nil }

// Why says why lengths are estimated; nil if they are not.
func (b *Builder) Why() error { return b.noCounter }

// Overhead is what the server's chat template puts around a message, at most;
// ok is false while it is not known. Tokens before the message are the same in
// every request, so a prefix cache may hold them whatever the prompt is.
func (b *Builder) Overhead() (tokens int64, ok bool) {
	return b.overhead, b.sampled && !b.Estimated()
}

// Observe tells the builder the true length of a text it made, where the server
// cannot count in advance: the next estimate is better.
func (b *Builder) Observe(p Prompt, promptTokens int64) {
	if b.Estimated() && Plausible(p.bytes(), promptTokens) {
		b.learn(p.shape, promptTokens)
	}
}

// learn takes the length of a word from a text that was counted.
func (b *Builder) learn(s shape, tokens int64) {
	words := int64(s.words + s.filler)
	// Less would be four words to a token.
	if inside := tokens - b.overhead; words >= 64 && inside*wordsPerToken >= words {
		b.wordTokens, b.wordCount = inside, words
	}
}

// Sample is a text of a few hundred words, for [Builder.Observe].
func (b *Builder) Sample() Prompt {
	return Prompt{shape: shape{words: sampleWords}}
}

// Nonce is a line that is the same for the same parts and for no others.
func Nonce(parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return hex.EncodeToString(sum[:8])
}

// Build makes a prompt of so many tokens. With tokens 0 it is the request alone:
// a short prompt for very long output. A length below what nonce and request
// take gives the shortest prompt there is.
func (b *Builder) Build(ctx context.Context, tokens int, task Task, nonce string) (Prompt, error) {
	b.calls = 0
	head := "[" + nonce + "]\n\n"
	if tokens <= 0 {
		p := Prompt{head: head, task: task}
		n, err := b.ask(ctx, p.Text())
		if err != nil {
			return Prompt{}, err
		}
		p.Tokens, p.Exact = n, n != nil
		return p, nil
	}
	if tokens > MaxText/wordBytes {
		return Prompt{}, fmt.Errorf("a prompt of %d tokens: at most %d can be made", tokens, MaxText/wordBytes)
	}
	if err := b.sample(ctx); err != nil {
		return Prompt{}, err
	}
	k := key{tokens, task}
	if b.Estimated() {
		return b.guess(k, head), nil
	}
	if s, ok := b.known[k]; ok && tokens >= headOnly && s.counted {
		n, err := b.ask(ctx, head)
		if err != nil {
			return Prompt{}, err
		}
		if n != nil {
			off := *n - s.head // this head is longer by so much
			if off >= -reserve && int64(s.filler) >= off {
				s.filler -= int(off)
				return Prompt{Tokens: &s.total, head: head, shape: s, task: task}, nil
			}
		}
	}
	return b.fit(ctx, k, head)
}

// guess makes a prompt that nobody counts.
func (b *Builder) guess(k key, head string) Prompt {
	s := shape{words: b.wordsFor(int64(k.tokens) - b.overhead - b.estimate(head+k.task.request()))}
	return Prompt{head: head, shape: s.within(k.tokens), task: k.task}
}

// within cuts a shape to what a text of so many tokens may be at most.
func (s shape) within(tokens int) shape {
	most := min(wordsPerToken*tokens+someWords, MaxText/(wordBytes+2))
	s.words, s.filler = min(max(s.words, 0), most), min(max(s.filler, 0), most)
	return s
}

// fit counts and corrects until the length is right or the calls are used up.
func (b *Builder) fit(ctx context.Context, k key, head string) (Prompt, error) {
	s, again := b.known[k]
	if !again {
		s = shape{filler: reserve}
		s.words = b.wordsFor(int64(k.tokens) - b.overhead - b.estimate(head+k.task.request()) - reserve)
	}
	countHead := !again && k.tokens >= headOnly
	limit := MaxCalls
	if countHead {
		limit--
	}
	var (
		best    shape
		bestOff int64
		found   bool
		// filler words to tokens, as seen at the last change of filler alone: some
		// tokenisers take several into one token, or one into several
		fillers, fillerTokens int64 = 1, 1
		last                  shape
		lastTokens            int64
	)
	for b.calls < limit {
		s = s.within(k.tokens)
		n, err := b.ask(ctx, render(head, s, k.task))
		if err != nil {
			return Prompt{}, err
		}
		if n == nil { // it could count, and now it cannot
			break
		}
		off := int64(k.tokens) - *n
		if !found || abs(off) < abs(bestOff) {
			found, best, bestOff = true, s, off
			best.total = *n
		}
		if off == 0 {
			break
		}
		if df, dt := int64(s.filler-last.filler), *n-lastTokens; lastTokens > 0 && s.words == last.words && df != 0 && dt != 0 {
			fillers, fillerTokens = df, dt
		}
		b.learn(s, *n)
		last, lastTokens = s, *n
		if abs(off) > reserve {
			s.words = max(0, s.words+b.exchange(off))
		} else {
			s.filler += int(off * fillers / fillerTokens)
			if s.filler < 0 { // not enough to take away: take words, and fill up again
				s.words, s.filler = max(0, s.words+s.filler), reserve
			}
		}
		if s.words == 0 && off < 0 {
			s.filler = 0 // the shortest there is
		}
		if s.words == last.words && s.filler == last.filler {
			break // no nearer
		}
	}
	if b.Estimated() { // what it counted before is not believed either
		return b.guess(k, head), nil
	}
	if again {
		best.head, best.counted = s.head, false
	}
	if countHead {
		n, err := b.ask(ctx, head)
		if err != nil {
			return Prompt{}, err
		}
		if n != nil {
			best.head, best.counted = *n, true
		}
	}
	b.known[k] = best
	return Prompt{Tokens: &best.total, Exact: true, head: head, shape: best, task: k.task}, nil
}

// sample learns the template's overhead and the length of a word, once.
func (b *Builder) sample(ctx context.Context) error {
	if b.sampled || b.Estimated() {
		return nil
	}
	n, err := b.ask(ctx, ".")
	if err != nil || n == nil {
		return err
	}
	b.overhead = *n
	n, err = b.ask(ctx, b.Sample().Text())
	if err != nil || n == nil {
		return err
	}
	b.learn(shape{words: sampleWords}, *n)
	b.sampled = true
	return nil
}

// ask counts one text; nil where the server cannot.
func (b *Builder) ask(ctx context.Context, text string) (*int64, error) {
	if b.Estimated() {
		return nil, nil
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	b.calls++
	n, err := b.count(ctx, text)
	if err == nil && !Plausible(len(text), n) {
		err = &implausible{tokens: n, bytes: len(text)}
	}
	if errors.Is(err, ErrNoCounter) {
		// What was learnt from it is not believed either.
		b.noCounter, b.overhead, b.sampled = err, 0, false
		b.wordTokens, b.wordCount = firstTokens, firstWords
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("count the tokens of a prompt: %w", err)
	}
	return &n, nil
}

// wordsFor is how many words are about so many tokens, never more.
func (b *Builder) wordsFor(tokens int64) int {
	if tokens <= 0 {
		return 0
	}
	return int(tokens * b.wordCount / max(b.wordTokens, 1))
}

// exchange is wordsFor with a sign; a shortening is rounded up.
func (b *Builder) exchange(tokens int64) int {
	if tokens < 0 {
		return -b.wordsFor(-tokens) - 1
	}
	return b.wordsFor(tokens)
}

// estimate is about how many tokens a text is that was not counted.
func (b *Builder) estimate(text string) int64 {
	words := int64(len(strings.Fields(text)))
	return words*b.wordTokens/b.wordCount + 8 // a nonce is a few tokens more than a word
}

// render writes the text of a shape. The order of the words depends on their
// place only, so one more word changes nothing before it.
func render(head string, s shape, task Task) string {
	var sb strings.Builder
	sb.Grow(len(head) + 6*s.words + 2*s.filler + 256)
	sb.WriteString(head)
	// PCG is specified: the same seed gives the same words with every Go release.
	r := rand.New(rand.NewPCG(0x5eed, 0x57ab1e))
	for i := range s.words {
		if i > 0 || head != "" {
			sb.WriteByte(' ')
		}
		sb.WriteString(words[r.Uint32()&0xff])
	}
	for range s.filler {
		sb.WriteString(" a")
	}
	if request := task.request(); request != "" {
		if s.words+s.filler > 0 {
			sb.WriteString("\n\n")
		}
		sb.WriteString(request)
	}
	return sb.String()
}

func abs(n int64) int64 { return max(n, -n) }

// Off says whether a true length is more than 0.1 % from the one asked. A prompt
// of no asked length is never off.
func Off(asked int, tokens int64) bool {
	return asked > 0 && abs(tokens-int64(asked))*1000 > int64(asked)
}

// words has 256 entries, so that a draw is eight bits.
var words = [256]string{
	"time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world", "school",
	"state", "family", "student", "group", "country", "problem", "hand", "part", "place", "case", "week", "company",
	"system", "program", "question", "work", "number", "night", "point", "home", "water", "room", "mother", "area",
	"money", "story", "fact", "month", "lot", "right", "study", "book", "eye", "job", "word", "business",
	"issue", "side", "kind", "head", "house", "service", "friend", "father", "power", "hour", "game", "line",
	"end", "member", "law", "car", "city", "name", "team", "minute", "idea", "kid", "body", "back",
	"parent", "face", "others", "level", "office", "door", "health", "person", "art", "history", "party", "result",
	"change", "morning", "reason", "research", "girl", "guy", "moment", "air", "teacher", "force", "education", "foot",
	"boy", "age", "policy", "music", "process", "sense", "nation", "plan", "college", "interest", "effect", "use",
	"class", "control", "field", "role", "effort", "rate", "heart", "show", "leader", "light", "voice", "wife",
	"police", "mind", "price", "report", "decision", "son", "view", "town", "road", "arm", "value", "building",
	"action", "season", "society", "tax", "director", "position", "player", "record", "paper", "space", "ground", "form",
	"event", "official", "matter", "center", "couple", "site", "project", "activity", "star", "table", "need", "court",
	"oil", "situation", "cost", "industry", "figure", "street", "image", "phone", "data", "picture", "practice", "piece",
	"land", "product", "doctor", "wall", "patient", "worker", "news", "test", "movie", "north", "love", "step",
	"goal", "baby", "computer", "type", "attention", "film", "tree", "source", "hair", "look", "window", "culture",
	"chance", "brother", "energy", "period", "course", "summer", "plant", "term", "letter", "condition", "choice", "rule",
	"daughter", "south", "husband", "floor", "campaign", "material", "call", "economy", "hospital", "church", "risk", "fire",
	"future", "bank", "west", "sport", "board", "subject", "officer", "rest", "behavior", "top", "goods", "bed",
	"order", "author", "agency", "nature", "color", "store", "sound", "movement", "page", "race", "concern", "series",
	"language", "response", "animal", "factor", "decade", "article", "east", "artist", "scene", "stock", "career", "treatment",
	"approach", "size", "dog", "fund",
}
