/* The HTML report in Chromium: each plot's marks are seen as pixels of their colour, light and dark.
 * Skipped where no chromium is installed. */
#include "lab/report.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <zlib.h>

#include "base/file.h"
#include "base/mem.h"
#include "lab/forensics.h"
#include "lab/levers.h"

#include <cmocka.h>

struct image {
    uint32_t w, h, channels;
    uint8_t *p; /* [h][w][channels] */
};

static uint32_t be32(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

/* 8-bit RGB or RGBA, not interlaced: what Chromium writes. */
static struct image png_read(const char *path)
{
    char *file;
    size_t n;
    struct err err;
    if (file_read_all(path, 64 * MIB, &file, &n, &err))
        fail_msg("%s", err.msg);
    const uint8_t *p = (const uint8_t *)file;
    struct buf packed = BUF_INIT;
    struct image im = {0};
    for (size_t at = 8; at + 12 <= n;) {
        const uint32_t k = be32(p + at);
        assert_true(k <= n - at - 12);
        if (!memcmp(p + at + 4, "IHDR", 4)) {
            im.w = be32(p + at + 8);
            im.h = be32(p + at + 12);
            assert_int_equal(p[at + 16], 8);
            im.channels = p[at + 17] == 6 ? 4 : 3;
        } else if (!memcmp(p + at + 4, "IDAT", 4)) {
            buf_add(&packed, p + at + 8, k);
        }
        at += 12 + k;
    }
    const size_t row = (size_t)im.w * im.channels;
    uLongf raw_n = (uLongf)((row + 1) * im.h);
    uint8_t *raw = malloc(raw_n);
    assert_int_equal(uncompress(raw, &raw_n, (const Bytef *)packed.p, (uLong)packed.n), Z_OK);
    im.p = calloc(im.h, row);
    for (uint32_t y = 0; y < im.h; y++) {
        const uint8_t *in = raw + y * (row + 1) + 1, filter = in[-1];
        uint8_t *out = im.p + y * row;
        const uint8_t *up = y ? out - row : NULL;
        for (size_t x = 0; x < row; x++) {
            const int a = x >= im.channels ? out[x - im.channels] : 0, b = up ? up[x] : 0,
                      c = up && x >= im.channels ? up[x - im.channels] : 0;
            const int pa = abs(b - c), pb = abs(a - c), pc = abs(a + b - 2 * c);
            const int add[] = {0, a, b, (a + b) / 2, pa <= pb && pa <= pc ? a : pb <= pc ? b : c};
            out[x] = (uint8_t)(in[x] + add[MIN(filter, 4)]);
        }
    }
    free(raw);
    buf_release(&packed);
    mem_free(file);
    return im;
}

static size_t pixels_of(const struct image *im, uint32_t y0, uint32_t y1, uint32_t rgb)
{
    size_t n = 0;
    for (uint32_t y = y0; y < MIN(y1, im->h); y++)
        for (uint32_t x = 0; x < im->w; x++) {
            const uint8_t *q = im->p + ((size_t)y * im->w + x) * im->channels;
            n += abs(q[0] - (int)(rgb >> 16)) < 12 && abs(q[1] - (int)(rgb >> 8 & 255)) < 12 &&
                 abs(q[2] - (int)(rgb & 255)) < 12;
        }
    return n;
}

static json_t *summary_of(const char *log, const char *dir)
{
    char path[512], trace[256];
    struct err err;
    struct forensics *f;
    struct forensics_engine e;
    json_t *sim, *s;
    snprintf(path, sizeof path, "%s/tests/logs/%s", HOUSE_SOURCE_DIR, log);
    snprintf(trace, sizeof trace, "%s/trace", dir);
    assert_int_equal(
        forensics_new(&(struct forensics_opts){.now = 1.8e9, .trace_path = trace}, &f, &err), 0);
    assert_int_equal(forensics_file(f, path, false, &err), 0);
    assert_int_equal(forensics_end(f, &err), 0);
    forensics_engine(f, &e);
    assert_int_equal(levers_predict(trace, &e, &sim, &err), 0);
    assert_int_equal(forensics_summary(f, sim, &s, &err), 0);
    forensics_free(f);
    unlink(trace);
    return s;
}

/* The page's own head, and each of its plots in a band of BAND pixels. */
enum { BAND = 340 };

static size_t plots_page(const char *html, struct buf *out)
{
    const char *body = strstr(html, "<main>");
    size_t n = 0;
    assert_non_null(body);
    buf_add(out, html, (size_t)(body - html));
    for (const char *p = html; (p = strstr(p, "<svg class=\"plot\"")); n++) {
        const char *end = strstr(p, "</svg>") + 6;
        buf_addf(out,
                 "<div "
                 "style=\"position:absolute;top:%zupx;left:0;width:740px;height:%dpx;overflow:"
                 "hidden\">%.*s</div>\n",
                 n * BAND, BAND, (int)(end - p), p);
        p = end;
    }
    buf_adds(out, "</body></html>\n");
    return n;
}

static void each_plot_is_seen(void **state)
{
    (void)state;
    if (system("command -v chromium >/dev/null 2>&1")) {
        print_message("skipped: no chromium\n");
        skip();
    }
    char dir[] = "/tmp/holdfast-report-XXXXXX", path[300], command[1200];
    struct err err;
    assert_non_null(mkdtemp(dir));
    json_t *s = summary_of("pxa.log", dir);
    struct buf html = BUF_INIT, page = BUF_INIT;
    report_document(s, &html, true);
    const size_t n = plots_page(buf_str(&html), &page);
    assert_int_equal(n, 4);
    snprintf(path, sizeof path, "%s/page.html", dir);
    assert_int_equal(file_write_atomically(path, page.p, page.n, &err), 0);
    static const struct {
        const char *scheme;
        uint32_t background;
        /* of the series each plot must show: prefixes, cost, lives, policies */
        uint32_t colour[4];
    } looks[] = {{"1", 0xffffff, {0x2a6fbb, 0x2a6fbb, 0xc2413c, 0x2e8b6f}},
                 {"0", 0x12151c, {0x6aa9ec, 0x6aa9ec, 0xf08580, 0x5fc7a4}}};
    for (size_t i = 0; i < COUNT_OF(looks); i++) {
        char shot[300];
        snprintf(shot, sizeof shot, "%s/shot%zu.png", dir, i);
        snprintf(command, sizeof command,
                 "timeout 60 chromium --headless --no-sandbox --disable-gpu --hide-scrollbars "
                 "--user-data-dir=%s/profile "
                 "--blink-settings=preferredColorScheme=%s --window-size=760,%zu --screenshot=%s "
                 "file://%s >/dev/null 2>&1",
                 dir, looks[i].scheme, n * BAND, shot, path);
        if (system(command) || access(shot, R_OK))
            fail_msg("no screenshot from: %s", command);
        struct image im = png_read(shot);
        assert_true(pixels_of(&im, 0, im.h, looks[i].background) > im.w * im.h / 2);
        for (size_t k = 0; k < n; k++) {
            const size_t seen = pixels_of(&im, (uint32_t)(k * BAND), (uint32_t)((k + 1) * BAND),
                                          looks[i].colour[k]);
            if (seen < 60)
                fail_msg("plot %zu, look %zu: %zu pixels of its colour", k, i, seen);
        }
        free(im.p);
    }
    snprintf(command, sizeof command, "rm -rf %s", dir);
    assert_int_equal(system(command), 0);
    buf_release(&html);
    buf_release(&page);
    json_decref(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(each_plot_is_seen)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
