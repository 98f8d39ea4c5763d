/* The encoder of one patch, for one instruction set and precision; included by fused.c with VEC, ROWS, VSQRT, NAME, LANE,
   MULTIPLY_ADD, JOIN_LANES and JOIN_TOKENS defined.

   The factors of products lie in lanes of 4 bytes: one float, or LANE = 2 neighbouring bfloat16 of the sum. Sums, norms,
   softmax and the residual stream are float32 in both.

   Everything lies with tokens along the vectors: activations are (feature, token), so layer norms, lengths and row sums
   need no shuffles. A block of BLOCK tokens stays in the L1 cache from the scores to the end of the layer; the scores
   themselves never leave it. Cosine-squared scores lie in [0, 1], so softmax needs no maximum, exp is a polynomial, and
   the division by the sum comes after the product with the values. */

typedef float NAME(v) __attribute__((vector_size(4 * VEC)));
typedef float NAME(u) __attribute__((vector_size(4 * VEC), aligned(4)));
typedef int32_t NAME(i) __attribute__((vector_size(4 * VEC)));
#define V NAME(v)
#define BLOCK (2 * VEC)

static INLINE V NAME(load)(const float *at) { return *(const NAME(u) *)at; }
static INLINE void NAME(store)(float *at, V value) { *(NAME(u) *)at = value; }
static INLINE V NAME(all)(float value) { return (V){0} + value; }
static INLINE V NAME(larger)(V a, V b) {
    NAME(i) mask = a > b;
    return (V)((mask & (NAME(i))a) | (~mask & (NAME(i))b));
}

/* acc[r] += sum over k of w[k * per_k + r * per_row] * x[k * stride ..], for ROWS rows, BLOCK tokens and `lanes` lanes. */
static INLINE void NAME(tile)(
    V acc[ROWS][2], const float *w, int per_k, int per_row, const float *x, int stride, int lanes) {
    for (int k = 0; k < lanes; k++, w += per_k, x += stride) {
        V first = NAME(load)(x), second = NAME(load)(x + VEC);
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++) {
            V weight = NAME(all)(w[r * per_row]);
            acc[r][0] = MULTIPLY_ADD(acc[r][0], weight, first);
            acc[r][1] = MULTIPLY_ADD(acc[r][1], weight, second);
        }
    }
}

/* exp for 0 <= x <= 1, by least squares of the relative error, reweighted until the largest was minimal: to 7e-7 of its value, or 3e-4 before it is rounded to bfloat16. */
static INLINE V NAME(exp_of_share)(V x) {
#if LANE == 1
    V value = NAME(all)(0.0136171659f);
    value = value * x + 0.0355016781f;
    value = value * x + 0.16980513f;
    value = value * x + 0.499301715f;
    value = value * x + 1.00005498f;
    return value * x + 0.999999327f;
#else
    V value = NAME(all)(0.27137117f);
    value = value * x + 0.434182889f;
    value = value * x + 1.01217399f;
    return value * x + 0.999677721f;
#endif
}

/* exp for x <= 0. */
static INLINE V NAME(exp)(V x) {
    x = NAME(larger)(x, NAME(all)(-87.0f));
    V shifted = x * 1.44269504f + 12582912.0f, whole = shifted - 12582912.0f;
    V rest = x - whole * 0.693359375f + whole * 2.12194440e-4f;
    V value = NAME(all)(1.0f / 720);
    value = value * rest + 1.0f / 120;
    value = value * rest + 1.0f / 24;
    value = value * rest + 1.0f / 6;
    value = value * rest + 0.5f;
    value = value * rest + 1.0f;
    value = value * rest + 1.0f;
    return (V)((NAME(i))value + (((NAME(i))shifted - 0x4B400000) << 23));
}

/* GELU: 0.5 + x P(x^2) / Q(x^2) is the normal distribution for |x| <= GELU_END. */
static INLINE V NAME(gelu)(V x) {
    V near = NAME(larger)(x, NAME(all)(-GELU_END));
    near = -NAME(larger)(-near, NAME(all)(-GELU_END));
    V square = near * near, p = NAME(all)(P5), q = NAME(all)(Q5);
    p = p * square + P4, q = q * square + Q4;
    p = p * square + P3, q = q * square + Q3;
    p = p * square + P2, q = q * square + Q2;
    p = p * square + P1, q = q * square + Q1;
    p = p * square + P0, q = q * square + 1.0f;
    return x * (near * p / q + 0.5f);
}

/* The tokens of a block, normalised over `width` features; scale and shift are in the next layer's weights. */
static INLINE void NAME(norm)(const float *x, float *out, int width) {
    for (int t = 0; t < BLOCK; t += VEC) {
        V sum = {0}, squares = {0};
        for (int f = 0; f < width; f++) sum += NAME(load)(x + f * TOKENS + t);
        V mean = sum * (1.0f / width);
        for (int f = 0; f < width; f++) {
            V off = NAME(load)(x + f * TOKENS + t) - mean;
            squares += off * off;
        }
        V inverse = 1.0f / VSQRT(squares * (1.0f / width) + NORM_EPSILON);
        for (int f = 0; f < width; f += LANE) {
            V one = (NAME(load)(x + f * TOKENS + t) - mean) * inverse;
            V other = (NAME(load)(x + (f + LANE - 1) * TOKENS + t) - mean) * inverse;
            NAME(store)(out + f / LANE * BLOCK + t, JOIN_LANES(one, other));
        }
    }
}

/* out (rows, tokens) = bias + w x; w is packed in groups of ROWS rows, x is a block. */
static INLINE void NAME(linear)(
    const float *w, const float *bias, const float *x, float *out, int stride, int rows, int width, int is_added) {
    for (int row = 0; row < rows; row += ROWS, w += ROWS * width / LANE) {
        V acc[ROWS][2];
        for (int r = 0; r < ROWS; r++) {
            V start = NAME(all)(bias ? bias[row + r] : 0.0f);
            float *at = out + (row + r) * stride;
            acc[r][0] = is_added ? start + NAME(load)(at) : start;
            acc[r][1] = is_added ? start + NAME(load)(at + VEC) : start;
        }
        NAME(tile)(acc, w, ROWS, 1, x, BLOCK, width / LANE);
        for (int r = 0; r < ROWS; r++) {
            NAME(store)(out + (row + r) * stride, acc[r][0]);
            NAME(store)(out + (row + r) * stride + VEC, acc[r][1]);
        }
    }
}

/* Queries, keys and values of a block; queries and keys of every head have length 1. */
static void NAME(project)(const struct net *net, const struct layer *layer, struct scratch *s, int token) {
    int width = net->width;
    NAME(norm)(s->x + token, s->block, width);
    NAME(linear)(layer->project, layer->project_bias, s->block, s->fresh, BLOCK, 3 * width, width, 0);
    for (int row = 0; row < 2 * width; row += HEAD)
        for (int t = 0; t < BLOCK; t += VEC) {
            const float *at = s->fresh + row * BLOCK + t;
            V squares = {0};
            for (int f = 0; f < HEAD; f++) squares += NAME(load)(at + f * BLOCK) * NAME(load)(at + f * BLOCK);
            V inverse = 1.0f / VSQRT(NAME(larger)(squares, NAME(all)(SMALLEST_SQUARE)));
            for (int f = 0; f < HEAD; f += LANE) {
                V one = NAME(load)(at + f * BLOCK) * inverse, other = NAME(load)(at + (f + LANE - 1) * BLOCK) * inverse;
                NAME(store)(s->qkv + (row + f) / LANE * TOKENS + token + t, JOIN_LANES(one, other));
            }
        }
    /* Products with the values run over keys: two tokens share a lane instead of two features. */
    float *values = s->qkv + 2 * width / LANE * TOKENS;
    for (int row = 0; row < width; row++) {
        const float *at = s->fresh + (2 * width + row) * BLOCK;
        float *to = values + row * (TOKENS / LANE) + token / LANE;
        for (int t = 0; t < BLOCK; t += LANE * VEC)
            NAME(store)(to + t / LANE, JOIN_TOKENS(NAME(load)(at + t), NAME(load)(at + t + (LANE - 1) * VEC)));
    }
}

/* What one head adds to a block of queries: its features of s->block. */
static void NAME(attend)(const struct net *net, struct scratch *s, int token, int head) {
    const float *queries = s->qkv + head * HEAD / LANE * TOKENS + token, *keys = queries - token + net->width / LANE * TOKENS;
    const float *values = s->qkv + 2 * net->width / LANE * TOKENS + head * HEAD * (TOKENS / LANE);
    V mixed[HEAD][2], total[2] = {{0}, {0}};
    memset(mixed, 0, sizeof mixed);
    for (int chunk = 0; chunk < TOKENS; chunk += CHUNK) {
        for (int key = 0; key < CHUNK; key += ROWS) {
            V acc[ROWS][2];
            for (int r = 0; r < ROWS; r++) acc[r][0] = acc[r][1] = (V){0};
            NAME(tile)(acc, keys + chunk + key, TOKENS, 1, queries, TOKENS, HEAD / LANE);
#pragma GCC unroll 8
            for (int r = 0; r < ROWS; r++)
                for (int half = 0; half < 2; half++) {
                    acc[r][half] = NAME(exp_of_share)(acc[r][half] * acc[r][half]);
                    total[half] += acc[r][half];
                }
#pragma GCC unroll 8
            for (int r = 0; r < ROWS; r += LANE)
                for (int half = 0; half < 2; half++)
                    NAME(store)(s->weights + (key + r) / LANE * BLOCK + half * VEC,
                                JOIN_LANES(acc[r][half], acc[r + LANE - 1][half]));
        }
        for (int f = 0; f < HEAD; f += ROWS) {
            V acc[ROWS][2];
            for (int r = 0; r < ROWS; r++) acc[r][0] = mixed[f + r][0], acc[r][1] = mixed[f + r][1];
            NAME(tile)(acc, values + f * (TOKENS / LANE) + chunk / LANE, 1, TOKENS / LANE, s->weights, BLOCK, CHUNK / LANE);
            for (int r = 0; r < ROWS; r++) mixed[f + r][0] = acc[r][0], mixed[f + r][1] = acc[r][1];
        }
    }
    V inverse[2] = {1.0f / total[0], 1.0f / total[1]};
    for (int f = 0; f < HEAD; f += LANE)
        for (int half = 0; half < 2; half++)
            NAME(store)(s->block + (head * HEAD + f) / LANE * BLOCK + half * VEC,
                        JOIN_LANES(mixed[f][half] * inverse[half], mixed[f + LANE - 1][half] * inverse[half]));
}

static void NAME(perceive)(const struct net *net, const struct layer *layer, struct scratch *s, int token) {
    NAME(norm)(s->x + token, s->block, net->width);
    NAME(linear)(layer->widen, layer->widen_bias, s->block, s->fresh, BLOCK, net->mlp_width, net->width, 0);
    for (int f = 0; f < net->mlp_width; f += LANE)
        for (int t = 0; t < BLOCK; t += VEC) {
            const float *at = s->fresh + f * BLOCK + t;
            V one = NAME(gelu)(NAME(load)(at)), other = LANE == 1 ? one : NAME(gelu)(NAME(load)(at + (LANE - 1) * BLOCK));
            NAME(store)(s->wide + f / LANE * BLOCK + t, JOIN_LANES(one, other));
        }
    NAME(linear)(layer->narrow, layer->narrow_bias, s->wide, s->x + token, TOKENS, net->width, net->mlp_width, 1);
}

static void NAME(encode)(const struct net *net, struct scratch *s) {
    for (int l = 0; l < net->depth; l++) {
        const struct layer *layer = &net->layers[l];
        for (int token = 0; token < TOKENS; token += BLOCK) NAME(project)(net, layer, s, token);
        for (int token = 0; token < TOKENS; token += BLOCK) {
            for (int head = 0; head < net->width / HEAD; head++) NAME(attend)(net, s, token, head);
            NAME(linear)(layer->merge, 0, s->block, s->x + token, TOKENS, net->width, net->width, 1);
            NAME(perceive)(net, layer, s, token);
        }
    }
}

#if LANE == 1 /* embedding and classifier are in single precision in any case */
/* Standardised pixels times the embedding: `count` pixels (bands) in, (embedded) out. */
static void NAME(embed)(const struct net *net, const float *pixels, long count, float *out, float *standard) {
    int bands = net->bands, columns = net->embedded;
    for (long first = 0; first < count; first += ROWS) {
        int rows = count - first < ROWS ? (int)(count - first) : ROWS;
        for (int r = 0; r < ROWS; r++) {
            const float *pixel = pixels + (first + (r < rows ? r : 0)) * bands;
            for (int b = 0; b < bands; b++) standard[r * bands + b] = (pixel[b] - net->mean[b]) / net->deviation[b];
        }
        for (int column = 0; column < columns; column += BLOCK) {
            V acc[ROWS][2];
            for (int r = 0; r < ROWS; r++)
                for (int half = 0; half < 2; half++) acc[r][half] = NAME(load)(net->embed_bias + column + half * VEC);
            NAME(tile)(acc, standard, 1, bands, net->embed + column, columns, bands);
            for (int r = 0; r < rows; r++)
                for (int half = 0; half < 2; half++)
                    NAME(store)(out + (first + r) * columns + column + half * VEC, acc[r][half]);
        }
    }
}

/* Logits (classes, tokens) of a block, without the spectral path: the last norm and the classifier. */
static void NAME(score)(const struct net *net, struct scratch *s, int token) {
    NAME(norm)(s->x + token, s->block, net->width);
    NAME(linear)(net->classifier, net->classifier_bias, s->block, s->logits + token, TOKENS, net->padded_classes,
                 net->width, 0);
}

/* Softmax over the classes of VEC tokens, in place. */
static void NAME(softmax)(const struct net *net, float *logits) {
    V largest = NAME(load)(logits), total = {0};
    for (int c = 1; c < net->classes; c++) largest = NAME(larger)(largest, NAME(load)(logits + c * TOKENS));
    for (int c = 0; c < net->classes; c++) {
        V value = NAME(exp)((NAME(load)(logits + c * TOKENS) - largest) * net->cooling);
        NAME(store)(logits + c * TOKENS, value);
        total += value;
    }
    V inverse = 1.0f / total;
    for (int c = 0; c < net->classes; c++)
        NAME(store)(logits + c * TOKENS, NAME(load)(logits + c * TOKENS) * inverse);
}

#endif

static void NAME(run)(const struct net *net, const struct window *window, struct scratch *s, float *out) {
    SINGLE(embed)(net, window->cube, (long)window->rows * window->cols, s->embedded, s->standard);
    for (int p = 0; p < window->count; p++) {
        gather(net, window, s, p);
        NAME(encode)(net, s);
        for (int token = 0; token < TOKENS; token += BLOCK)
            SINGLE(score)(net, s, token);
        add_spectral_path(net, s);
        for (int token = 0; token < predicted_tokens(net); token += VEC) SINGLE(softmax)(net, s->logits + token);
        out = write_probabilities(net, s, out);
    }
}

#undef V
#undef BLOCK
#undef VEC
#undef ROWS
#undef VSQRT
#undef NAME
#undef LANE
#undef SINGLE
#undef MULTIPLY_ADD
#undef JOIN_LANES
#undef JOIN_TOKENS
