/* The network as one kernel: a patch at a time, everything in the cache. service/mapping/fused_engine.py calls it. */

#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define TOKENS 256 /* of a patch of 16 x 16 pixels */
#define SIDE 16
#define HEAD 16  /* features of a head */
#define CHUNK 128 /* keys whose weights lie in the L1 cache at once, beside keys and values */
#define MAX_DEPTH 16
#define NORM_EPSILON 1e-5f
#define SMALLEST_SQUARE 1e-12f /* as in model/attention.py */
#define INLINE inline __attribute__((always_inline))
#define JOIN_(a, b) a##_##b
#define JOIN(a, b) JOIN_(a, b)

/* GELU as in openvino_engine.py. */
#define GELU_END 5.6f
#define P0 3.989422216481063e-01f
#define P1 3.4375226114848924e-02f
#define P2 4.707200787631535e-03f
#define P3 1.7384106964141808e-04f
#define P4 6.356400745889188e-06f
#define P5 2.2145611227877062e-08f
#define Q1 2.5283162799260994e-01f
#define Q2 2.8939571103466788e-02f
#define Q3 1.9129242830422716e-03f
#define Q4 7.509847178480701e-05f
#define Q5 1.1802109153831645e-06f

enum { POOLED, CENTRE, PER_TOKEN };

struct layer {
    const float *project, *project_bias, *merge, *widen, *widen_bias, *narrow, *narrow_bias;
};

struct net {
    int32_t bands, width, mlp_width, depth, classes, padded_classes, embedded, head;
    float cooling; /* 1 / temperature */
    const float *mean, *deviation, *embed, *embed_bias, *positions, *classifier, *classifier_bias;
    struct layer layers[MAX_DEPTH];
};

struct window {
    const float *cube; /* (rows, cols, bands) */
    const int64_t *centers; /* (count, 2) */
    int32_t rows, cols, count;
};

struct scratch {
    float *embedded; /* (pixels, embedded): tokens, then the spectral path's logits */
    float *standard; /* (ROWS, bands) */
    float *x;        /* (width, TOKENS) */
    float *qkv;      /* lanes of queries and keys (width / LANE, TOKENS), of values (width, TOKENS / LANE) */
    float *fresh;    /* (3 width or mlp_width, BLOCK) */
    float *block;    /* (width, BLOCK) */
    float *wide;     /* (mlp_width, BLOCK) */
    float *weights;  /* (CHUNK, BLOCK) */
    float *logits;   /* (padded_classes, TOKENS) */
    int32_t *pixels; /* (TOKENS) */
};

/* Folded into 0 .. size - 1 by reflection that does not repeat the edge. */
static int64_t reflected(int64_t index, int64_t size) {
    int64_t period = size > 1 ? 2 * (size - 1) : 1, folded = index % period;
    if (folded < 0) folded += period;
    return folded < period - folded ? folded : period - folded;
}

static void gather(const struct net *net, const struct window *window, struct scratch *s, int patch) {
    const int64_t *center = window->centers + 2 * patch;
    for (int t = 0; t < TOKENS; t++) {
        int64_t row = reflected(center[0] + t / SIDE - SIDE / 2, window->rows);
        int64_t col = reflected(center[1] + t % SIDE - SIDE / 2, window->cols);
        s->pixels[t] = (int32_t)(row * window->cols + col);
        const float *token = s->embedded + (int64_t)s->pixels[t] * net->embedded;
        for (int f = 0; f < net->width; f++) s->x[f * TOKENS + t] = token[f] + net->positions[f * TOKENS + t];
    }
}

static int predicted_tokens(const struct net *net) { return net->head == PER_TOKEN ? TOKENS : 1; }

/* The logits of the head, with the spectral path's; those of one token are moved to the front. */
static void add_spectral_path(const struct net *net, struct scratch *s) {
    int centre = SIDE / 2 * SIDE + SIDE / 2;
    for (int c = 0; c < net->classes; c++) {
        float *logits = s->logits + c * TOKENS;
        if (net->head == POOLED) { /* the mean of tokens before a linear layer is that of the logits after it */
            double sum = 0;
            for (int t = 0; t < TOKENS; t++) sum += logits[t];
            logits[0] = (float)(sum / TOKENS);
        } else if (net->head == CENTRE)
            logits[0] = logits[centre];
        for (int t = 0; t < predicted_tokens(net); t++) {
            int pixel = s->pixels[net->head == PER_TOKEN ? t : centre];
            logits[t] += s->embedded[(int64_t)pixel * net->embedded + net->width + c];
        }
    }
}

static float *write_probabilities(const struct net *net, const struct scratch *s, float *out) {
    for (int t = 0; t < predicted_tokens(net); t++)
        for (int c = 0; c < net->classes; c++) *out++ = s->logits[c * TOKENS + t];
    return out;
}

#define IN_FLOATS(sum, a, b) ((sum) + (a) * (b))
#define ALONE(a, b) ((void)(b), (a))

#if defined(__x86_64__)
#pragma GCC push_options
#pragma GCC target("avx512f,avx512dq,avx512vl,avx512bw,avx2,fma")
#define VEC 16
#define ROWS 8
#define VSQRT(x) _mm512_sqrt_ps(x)
#define NAME(name) JOIN(name, avx512)
#define LANE 1
#define SINGLE NAME
#define MULTIPLY_ADD IN_FLOATS
#define JOIN_LANES ALONE
#define JOIN_TOKENS ALONE
#include "encoder.h"
#pragma GCC target("avx512bf16")
/* Lanes of two bfloat16, the first in the lower half. */
static INLINE __m512 joined_tokens(__m512 one, __m512 other) { return (__m512)_mm512_cvtne2ps_pbh(other, one); }
static INLINE __m512 joined_lanes(__m512 one, __m512 other) {
    const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21,
                                           5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return (__m512)_mm512_permutexvar_epi16(order, (__m512i)joined_tokens(one, other));
}
#define VEC 16
#define ROWS 8
#define VSQRT(x) _mm512_sqrt_ps(x)
#define NAME(name) JOIN(name, avx512bf16)
#define LANE 2
#define SINGLE(name) JOIN(name, avx512)
#define MULTIPLY_ADD(sum, a, b) _mm512_dpbf16_ps(sum, (__m512bh)(a), (__m512bh)(b))
#define JOIN_LANES joined_lanes
#define JOIN_TOKENS joined_tokens
#include "encoder.h"
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx2,fma")
#define VEC 8
#define ROWS 4
#define VSQRT(x) _mm256_sqrt_ps(x)
#define NAME(name) JOIN(name, avx2)
#define LANE 1
#define SINGLE NAME
#define MULTIPLY_ADD IN_FLOATS
#define JOIN_LANES ALONE
#define JOIN_TOKENS ALONE
#include "encoder.h"
#pragma GCC pop_options
#elif defined(__aarch64__)
#include <arm_neon.h>
#define VEC 4
#define ROWS 8
#define VSQRT(x) vsqrtq_f32(x)
#define NAME(name) JOIN(name, neon)
#define LANE 1
#define SINGLE NAME
#define MULTIPLY_ADD IN_FLOATS
#define JOIN_LANES ALONE
#define JOIN_TOKENS ALONE
#include "encoder.h"
#endif

enum kernel { AVX2 = 1, AVX512 = 2, AVX512_BF16 = 3, NEON = 4 }; /* as in fused_engine.py */

/* Whether this processor runs a kernel. */
int32_t hyperscene_has(int32_t kernel) {
#if defined(__x86_64__)
    int avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                 __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw");
    if (kernel == AVX2) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (kernel == AVX512) return avx512;
    if (kernel == AVX512_BF16) return avx512 && __builtin_cpu_supports("avx512bf16");
#elif defined(__aarch64__)
    if (kernel == NEON) return 1;
#endif
    return 0;
}

/* The probabilities of a window's patches. */
void hyperscene_run(
    const struct net *net, const struct window *window, struct scratch *scratch, float *out, int32_t kernel) {
#if defined(__x86_64__)
    if (kernel == AVX2) run_avx2(net, window, scratch, out);
    if (kernel == AVX512) run_avx512(net, window, scratch, out);
    if (kernel == AVX512_BF16) run_avx512bf16(net, window, scratch, out);
#elif defined(__aarch64__)
    if (kernel == NEON) run_neon(net, window, scratch, out);
#endif
}
